// SPDX-License-Identifier: BSD-3-Clause
// The beginning of a session, and the identity of its peer.
#include <arpa/inet.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <utility>

#include "rdma/transport/tls/hooks.hpp"
#include "rdma/transport/tls/inspect.hpp"

namespace rtrs::tls {
namespace {

constexpr const char* kLeft = "the peer closed the connection during the TLS handshake";

bool is_address(const std::string& host) {
  in6_addr ignored;
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &ignored) == 1;
}

std::string name_of_cipher(gnutls_session_t session) {
  const std::string version =
      gnutls_protocol_get_version(session) == GNUTLS_TLS1_2 ? "tls12/" : "tls13/";
  switch (gnutls_cipher_get(session)) {
    case GNUTLS_CIPHER_AES_128_GCM:
      return version + "aes128gcm";
    case GNUTLS_CIPHER_AES_256_GCM:
      return version + "aes256gcm";
    case GNUTLS_CIPHER_CHACHA20_POLY1305:
      return version + "chacha20";
    default:
      return version + gnutls_cipher_get_name(gnutls_cipher_get(session));
  }
}

std::string date_of(std::time_t when) {
  std::array<char, 32> text{};
  struct tm parts {};
  if (gmtime_r(&when, &parts) == nullptr) return "?";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

/// Certificates depend on clocks, and a clock that is wrong is the commonest reason.
std::string times_of_peer(gnutls_session_t session) {
  unsigned count = 0;
  const gnutls_datum_t* const chain = gnutls_certificate_get_peers(session, &count);
  if (chain == nullptr || count == 0) return "";
  const auto times = times_in({chain[0].data, chain[0].size});
  if (!times) return "";
  return " (it holds from " + date_of(times->begin) + " to " + date_of(times->end) +
         "; here it is " + date_of(std::time(nullptr)) + ": look at the clocks of both machines)";
}

/// "the certificate chain is not trusted", without the library's capitals and full stops.
std::string why_unverified(gnutls_session_t session) {
  const unsigned status = gnutls_session_get_verify_cert_status(session);
  gnutls_datum_t text{};
  if (gnutls_certificate_verification_status_print(status, gnutls_certificate_type_get(session),
                                                   &text, 0) < 0) {
    return "its certificate is not trusted";
  }
  std::string why{reinterpret_cast<const char*>(text.data), text.size};
  gnutls_free(text.data);
  while (!why.empty() && (why.back() == ' ' || why.back() == '.')) why.pop_back();
  const bool by_time = (status & (GNUTLS_CERT_NOT_ACTIVATED | GNUTLS_CERT_EXPIRED)) != 0;
  return "its certificate does not hold: " + why + (by_time ? times_of_peer(session) : "");
}

/// True: the certificate will hold, or does as soon as a clock is right; nothing else is wrong.
bool will_hold(gnutls_session_t session) {
  return (gnutls_session_get_verify_cert_status(session) & ~unsigned{GNUTLS_CERT_INVALID}) ==
         GNUTLS_CERT_NOT_ACTIVATED;
}

}  // namespace

tl::expected<std::unique_ptr<Session>, Failure> Session::create(SessionSetup setup) {
  std::unique_ptr<Session> made{new Session{std::move(setup)}};
  if (const int error = made->prepare(); error < 0) {
    return tl::unexpected(Failure{error == GNUTLS_E_MEMORY_ERROR ? ENOMEM : EINVAL,
                                  std::string{"TLS cannot be set up: "} + gnutls_strerror(error)});
  }
  return made;
}

Session::Session(SessionSetup setup) : setup_{std::move(setup)} {}

Session::~Session() {
  if (session_ != nullptr) gnutls_deinit(session_);
}

const Secret* Session::claimed_key(std::string_view name) {
  claimed_ = name;
  return credentials().find(name);
}

Identity Session::claim() const {
  Identity claim;
  unsigned count = 0;
  const gnutls_datum_t* const chain = gnutls_certificate_get_peers(session_, &count);
  if (claimed_) {
    claim.how = Identity::How::psk;
    claim.name = *claimed_;
  } else if (chain != nullptr && count > 0) {
    claim.how = Identity::How::certificate;
    claim.name = names_in({chain[0].data, chain[0].size}).common_name;
  }
  return claim;
}

int Session::prepare() {
  const bool server = credentials().role() == Role::server;
  constexpr unsigned kFlags = GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS;
  // A client shows its certificate to a server of another authority, too. So that one's log says
  // who came, and this client is not told that it has none.
  constexpr unsigned kClient = GNUTLS_CLIENT | GNUTLS_FORCE_CLIENT_CERT;
  int error = gnutls_init(&session_, (server ? GNUTLS_SERVER : kClient) | kFlags);
  if (error < 0) return error;
  gnutls_session_set_ptr(session_, this);
  gnutls_transport_set_ptr(session_, this);
  gnutls_transport_set_pull_function(session_, Hooks::pull);
  gnutls_transport_set_pull_timeout_function(session_, Hooks::wait);
  gnutls_transport_set_vec_push_function(session_, Hooks::push);
  gnutls_handshake_set_timeout(session_, 0);  // whoever drives the session has a deadline
  error = credentials().apply(session_);
  if (error < 0) return error;
  if (!setup_.protocol.empty()) {
    const gnutls_datum_t protocol{reinterpret_cast<unsigned char*>(setup_.protocol.data()),
                                  static_cast<unsigned>(setup_.protocol.size())};
    error = gnutls_alpn_set_protocols(session_, &protocol, 1, GNUTLS_ALPN_MANDATORY);
    if (error < 0) return error;
  }
  return prepare_verification();
}

int Session::prepare_verification() {
  const bool server = credentials().role() == Role::server;
  if (!server && !setup_.server_name.empty() && !is_address(setup_.server_name)) {
    const std::string& name = setup_.server_name;
    const int error = gnutls_server_name_set(session_, GNUTLS_NAME_DNS, name.data(), name.size());
    if (error < 0) return error;
  }
  if (!credentials().has_certificates() || !credentials().verifies_peer()) return 0;
  // The names of the purposes, and of the host, stay as long as the session.
  verification_ = std::make_unique<Verification>();
  auto& data = verification_->data;
  const char* const purpose = server ? GNUTLS_KP_TLS_WWW_CLIENT : GNUTLS_KP_TLS_WWW_SERVER;
  data[0] = {GNUTLS_DT_KEY_PURPOSE_OID,
             reinterpret_cast<unsigned char*>(const_cast<char*>(purpose)), 0};
  data[1] = {GNUTLS_DT_DNS_HOSTNAME, reinterpret_cast<unsigned char*>(setup_.server_name.data()),
             0};
  gnutls_session_set_verify_cert2(session_, data.data(), server ? 1 : 2, 0);
  if (server) gnutls_certificate_server_set_request(session_, GNUTLS_CERT_REQUIRE);
  return 0;
}

Session::Step Session::shake_hands() {
  const int result = gnutls_handshake(session_);
  if (result == 0) return conclude();
  if (gnutls_error_is_fatal(result) != 0) return fail_handshake(result);
  if (!ended_) return Step::receive;
  return fail(ECONNRESET, kLeft);
}

/// A handshake that succeeded proves nobody: the peer may have been asked for nothing.
Session::Step Session::conclude() {
  state_ = State::ready;
  if (!setup_.protocol.empty()) {
    gnutls_datum_t chosen{};
    const int error = gnutls_alpn_get_selected_protocol(session_, &chosen);
    const std::string_view name{reinterpret_cast<const char*>(chosen.data), chosen.size};
    if (error < 0 || name != setup_.protocol) {
      gnutls_alert_send(session_, GNUTLS_AL_FATAL, GNUTLS_A_NO_APPLICATION_PROTOCOL);
      return fail(EPROTO, "it does not name the protocol '" + setup_.protocol +
                              "' (ALPN): it is another service, or another client");
    }
  }
  identity_.cipher = name_of_cipher(session_);
  if (const std::string wrong = judge_peer(); !wrong.empty()) {
    gnutls_alert_send(session_, GNUTLS_AL_FATAL, GNUTLS_A_ACCESS_DENIED);
    return fail(EACCES, wrong);
  }
  return Step::done;
}

std::string Session::judge_peer() {
  if (gnutls_auth_get_type(session_) == GNUTLS_CRD_PSK) {
    // GnuTLS cannot be told so: the key exchange has one name in both versions.
    if (gnutls_protocol_get_version(session_) == GNUTLS_TLS1_2) {
      return "it comes with a shared key and TLS 1.2, which is for certificates";
    }
    identity_.how = Identity::How::psk;
    identity_.key = credentials().key_name();
    if (credentials().role() == Role::server) {
      gnutls_datum_t name{};
      if (gnutls_psk_server_get_username2(session_, &name) < 0) return "its key has no name";
      identity_.key.assign(reinterpret_cast<const char*>(name.data), name.size);
      if (credentials().find(identity_.key) == nullptr) return "its key is not known";
    }
    identity_.name = identity_of(identity_.key);
    return "";
  }
  // A side that has only a shared key is not content with a certificate that nobody has checked.
  if (!credentials().has_certificates()) return "it has proven nothing: it does not have the key";
  return credentials().verifies_peer() ? judge_certificate() : "";
}

std::string Session::judge_certificate() {
  unsigned count = 0;
  const gnutls_datum_t* const chain = gnutls_certificate_get_peers(session_, &count);
  if (chain == nullptr || count == 0) return "it has shown no certificate";
  const CertificateNames names = names_in({chain[0].data, chain[0].size});
  identity_.how = Identity::How::certificate;
  identity_.key = names.serial;
  identity_.name = names.common_name;
  // A client looks for the host among the names that a certificate may have beside it.
  if (credentials().role() == Role::client) return "";
  const std::string fault = fault_of_identity(names.common_name);
  if (fault.empty()) return "";
  identity_.name.clear();
  return "its certificate has no single common name (CN) that can be a user's: the name " + fault;
}

// ---- Failures ----------------------------------------------------------------------------------

Session::Step Session::fail(int error, std::string text) {
  state_ = State::broken;
  failure_ = {error, std::move(text)};
  return Step::failed;
}

/// As a server and as a client may be told different things, so that keys cannot be tried out.
std::string Session::refusal() const {
  const auto alert = gnutls_alert_get(session_);
  const char* const name = gnutls_alert_get_name(alert);
  const std::string said = std::string{" (alert: "} + (name != nullptr ? name : "?") + ")";
  if (credentials().role() == Role::server) {
    const bool of_certificate = alert == GNUTLS_A_BAD_CERTIFICATE ||
                                alert == GNUTLS_A_CERTIFICATE_EXPIRED ||
                                alert == GNUTLS_A_CERTIFICATE_UNKNOWN;
    return "it refuses this server" + said +
           (of_certificate ? ": its log says why; often a clock is wrong there" : "");
  }
  switch (alert) {
    case GNUTLS_A_NO_APPLICATION_PROTOCOL:
      return "it does not speak RTRS within TLS" + said;
    case GNUTLS_A_CERTIFICATE_REQUIRED:
      return "it wants a certificate of this client: put client-cert.pem and client-key.pem into "
             "the directory of " +
             (credentials().words().certificates + said);
    case GNUTLS_A_ACCESS_DENIED:
      return "it does not let this client in: its log says why" + said;
    default:
      break;
  }
  if (credentials().has_psk()) {
    return "it does not have the key '" + credentials().key_name() + "', or another secret for it" +
           said;
  }
  return "it does not accept this client's certificate: its log says why" + said;
}

Session::Step Session::fail_handshake(int error) {
  if (error == GNUTLS_E_FATAL_ALERT_RECEIVED) return fail(EACCES, refusal());
  // GnuTLS calls half a message damaged.
  if (cut_) return fail(ECONNRESET, kLeft);
  gnutls_alert_send_appropriate(session_, error);
  switch (error) {
    case GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR:
    case GNUTLS_E_CERTIFICATE_ERROR:
      // A client may wait for it.
      return fail(credentials().role() == Role::client && will_hold(session_) ? EAGAIN : EACCES,
                  why_unverified(session_));
    case GNUTLS_E_CERTIFICATE_REQUIRED:
    case GNUTLS_E_NO_CERTIFICATE_FOUND:
      return fail(EACCES, "it has shown no certificate");
    case GNUTLS_E_NO_APPLICATION_PROTOCOL:
      return fail(EPROTO, "it names another protocol than '" + setup_.protocol + "' (ALPN)");
    case GNUTLS_E_UNSUPPORTED_VERSION_PACKET:
    case GNUTLS_E_NO_CIPHER_SUITES:
    case GNUTLS_E_NO_COMMON_KEY_SHARE:
      return fail(EPROTO, std::string{"it offers no "} + credentials().versions() +
                              " that is good enough: " + gnutls_strerror(error));
    default:
      break;
  }
  if (claimed_) {
    // The same for a name that is not known and for a key that is wrong.
    return fail(EACCES, "it does not have a key that this server has");
  }
  return fail(EPROTO, std::string{"the TLS handshake failed: "} + gnutls_strerror(error));
}

}  // namespace rtrs::tls
