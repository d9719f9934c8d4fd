// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tls/credentials.hpp"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "rdma/audit_line.hpp"
#include "rdma/transport/tls/datum.hpp"
#include "rdma/transport/tls/inspect.hpp"
#include "rdma/transport/tls/key_files.hpp"
#include "rdma/transport/tls/session.hpp"

namespace rtrs::tls {
namespace {

/// AES-128 first: shared keys leave no larger AES, and GnuTLS prefers a ChaCha20 that is ten times
/// slower to it. Only key exchanges with forward secrecy: never +PSK, and of TLS 1.2 no RSA; the
/// ciphers leave nothing of it but AEAD. Source: gnutls_priority_init(3).
constexpr const char* kPriority =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:+CHACHA20-POLY1305:"
    "-GROUP-ALL:+GROUP-X25519:+GROUP-SECP256R1:+GROUP-SECP384R1:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:%"
    "SERVER_PRECEDENCE";

/// A name that is not in the file gets a key that nobody has: so it fails as a wrong key does, and
/// names cannot be tried out.
int find_server_key(gnutls_session_t session, const gnutls_datum_t* name, gnutls_datum_t* key) {
  auto& self = *static_cast<Session*>(gnutls_session_get_ptr(session));
  const std::string_view text{reinterpret_cast<const char*>(name->data), name->size};
  const Secret* const secret = self.claimed_key(text);
  constexpr unsigned kStranger = 32;  ///< bytes
  const unsigned size =
      secret != nullptr ? static_cast<unsigned>(secret->bytes().size()) : kStranger;
  key->data = static_cast<unsigned char*>(gnutls_malloc(size));
  if (key->data == nullptr) return GNUTLS_E_MEMORY_ERROR;
  key->size = size;
  if (secret == nullptr) return gnutls_rnd(GNUTLS_RND_KEY, key->data, size);
  std::memcpy(key->data, secret->bytes().data(), size);
  return 0;
}

/// Certificates of authorities.
class Authority {
 public:
  explicit Authority(const gnutls_datum_t& pem) {
    if (gnutls_x509_crt_list_import2(&certificates_, &count_, &pem, GNUTLS_X509_FMT_PEM, 0) < 0) {
      certificates_ = nullptr;
      count_ = 0;
    }
  }
  ~Authority() {
    for (unsigned n = 0; n < count_; ++n) gnutls_x509_crt_deinit(certificates_[n]);
    gnutls_free(certificates_);
  }
  Authority(const Authority&) = delete;
  Authority& operator=(const Authority&) = delete;

  /// A list that is overdue still says who was revoked. Each certificate is tried alone, because
  /// GnuTLS takes the first one of the right name.
  bool has_signed(gnutls_x509_crl_t list) const {
    constexpr unsigned kForged = GNUTLS_CERT_SIGNER_NOT_FOUND | GNUTLS_CERT_SIGNER_NOT_CA |
                                 GNUTLS_CERT_SIGNATURE_FAILURE | GNUTLS_CERT_INSECURE_ALGORITHM;
    for (unsigned n = 0; n < count_; ++n) {
      unsigned status = 0;
      const int error = gnutls_x509_crl_verify(list, certificates_ + n, 1, 0, &status);
      if (error >= 0 && (status & kForged) == 0) return true;
    }
    return false;
  }

  /// A name that several of them have, with different keys; "": there is none.
  std::string shared_name() const {
    std::map<std::string, std::string> key_of;
    for (unsigned n = 0; n < count_; ++n) {
      std::array<char, 512> name{};
      std::array<unsigned char, 64> id{};
      std::size_t size = name.size(), id_size = id.size();
      if (gnutls_x509_crt_get_dn(certificates_[n], name.data(), &size) < 0 ||
          gnutls_x509_crt_get_key_id(certificates_[n], 0, id.data(), &id_size) < 0) {
        continue;
      }
      const std::string key = hex_of(std::span{id}.first(id_size));
      const auto [known, is_new] = key_of.try_emplace(std::string{name.data(), size}, key);
      if (!is_new && known->second != key) return known->first;
    }
    return "";
  }

 private:
  gnutls_x509_crt_t* certificates_ = nullptr;
  unsigned count_ = 0;
};

/// The serial numbers in all lists of a file. None: the authority has not signed one of them.
/// GnuTLS itself believes any list.
std::optional<std::set<std::string>> revoked_in(const gnutls_datum_t& pem,
                                                const Authority& authority) {
  std::set<std::string> serials;
  gnutls_x509_crl_t* lists = nullptr;
  unsigned count = 0;
  if (gnutls_x509_crl_list_import2(&lists, &count, &pem, GNUTLS_X509_FMT_PEM, 0) < 0) return {};
  bool genuine = true;
  for (unsigned n = 0; n < count; ++n) {
    genuine = genuine && authority.has_signed(lists[n]);
    for (int index = 0; index < gnutls_x509_crl_get_crt_count(lists[n]); ++index) {
      std::array<unsigned char, 64> serial{};
      std::size_t size = serial.size();
      time_t since = 0;
      if (gnutls_x509_crl_get_crt_serial(lists[n], static_cast<unsigned>(index), serial.data(),
                                         &size, &since) < 0) {
        continue;
      }
      serials.insert(hex_of(std::span{serial}.first(size)));
    }
    gnutls_x509_crl_deinit(lists[n]);
  }
  gnutls_free(lists);
  if (!genuine) return std::nullopt;
  return serials;
}

/// "" or a mistake in the files that keeps some peers out.
std::string doubt_about(const TlsKeys& keys) {
  const std::string file = keys.certificates + '/' + kCaCertificate;
  if (keys.certificates.empty() || !is_there(file)) return "";
  const auto content = read_key_file(file, Kind::open);
  if (!content) return "";
  const std::string shared = Authority{datum_of(content->text())}.shared_name();
  if (shared.empty()) return "";
  return file + ": several authorities are called " + ascii_of(shared) +
         ", and those whom one of them has signed may be refused; replace it by one with a name of "
         "its own (rnbd-ctl certgen makes such)";
}

}  // namespace

Credentials::~Credentials() {
  if (certificate_ != nullptr) gnutls_certificate_free_credentials(certificate_);
  if (psk_client_ != nullptr) gnutls_psk_free_client_credentials(psk_client_);
  if (psk_server_ != nullptr) gnutls_psk_free_server_credentials(psk_server_);
  if (priority_ != nullptr) gnutls_priority_deinit(priority_);
}

const Secret* Credentials::find(std::string_view key_name) const {
  const auto found = std::ranges::find(keys_, key_name, &PskKey::name);
  return found == keys_.end() ? nullptr : &found->secret;
}

std::string Credentials::withdrawn(const Identity& user) const {
  const bool shared = user.how == Identity::How::psk || user.how == Identity::How::proof;
  if (shared && find(user.key) == nullptr) {
    return "the key '" + user.key + "' was withdrawn";
  }
  if (user.how == Identity::How::certificate && revoked_.contains(user.key)) {
    return "the certificate of '" + user.name + "' was revoked";
  }
  return "";
}

/// Notes when a file ends. One without a certificate is complained of where it is used.
void Credentials::note_end(const std::string& file, std::string_view pem, bool list) {
  if (const auto end = first_end(pem)) ends_.push_back({file, *end, list});
}

std::string Credentials::ending(std::time_t now, bool lists) const {
  std::string text;
  for (const End& end : ends_) {
    if (end.list != lists) continue;
    const std::string soon = lists ? list_ends_soon(end.when, now) : end_soon(end.when, now);
    if (!soon.empty()) text += (text.empty() ? "" : "; ") + end.file + ' ' + soon;
  }
  return text;
}

int Credentials::apply(gnutls_session_int* session) const {
  int error = gnutls_priority_set(session, priority_);
  if (error == 0 && certificate_ != nullptr) {
    error = gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, certificate_);
  }
  if (error == 0 && psk_client_ != nullptr) {
    error = gnutls_credentials_set(session, GNUTLS_CRD_PSK, psk_client_);
  }
  if (error == 0 && psk_server_ != nullptr) {
    error = gnutls_credentials_set(session, GNUTLS_CRD_PSK, psk_server_);
  }
  return error;
}

tl::expected<std::shared_ptr<const Credentials>, std::string> Credentials::load(
    const TlsKeys& keys, Role role, const OptionWords& words) {
  if (keys.none()) {
    return tl::unexpected(std::string{"TLS and proofs need keys: "} + words.name_keys);
  }
  const std::shared_ptr<Credentials> loaded{new Credentials{role, words}};
  loaded->verify_peer_ = keys.verify_peer;
  loaded->tls12_ = keys.tls12 && !keys.certificates.empty();
  std::string wrong;
  if (!keys.psk.empty()) wrong = loaded->load_psk(keys);
  if (wrong.empty() && !keys.certificates.empty()) {
    wrong = loaded->load_certificates(keys.certificates);
  }
  if (wrong.empty()) wrong = loaded->prepare_priority();
  if (!wrong.empty()) return tl::unexpected(wrong);
  return loaded;
}

std::string Credentials::prepare_priority() {
  const std::string words =
      std::string{kPriority} + (has_psk() ? ":+ECDHE-PSK" : "") + (tls12_ ? ":+VERS-TLS1.2" : "");
  const int error = gnutls_priority_init(&priority_, words.c_str(), nullptr);
  return error < 0 ? std::string{"GnuTLS lacks what is needed: "} + gnutls_strerror(error) : "";
}

std::string Credentials::load_psk(const TlsKeys& keys) {
  const auto content = read_key_file(keys.psk, Kind::secret);
  if (!content) return content.error();
  const std::string where = keys.psk + ": ";
  auto all = parse_psk(content->text());
  if (!all) return where + all.error();
  keys_ = *std::move(all);
  if (role_ == Role::server) {
    if (gnutls_psk_allocate_server_credentials(&psk_server_) < 0) return "out of memory for keys";
    gnutls_psk_set_server_credentials_function2(psk_server_, find_server_key);
    return "";
  }
  const auto own = choose_key(keys_, keys.username, words_);
  if (!own) return where + own.error();
  key_name_ = (*own)->name;
  const gnutls_datum_t name = datum_of(key_name_);
  const auto secret = (*own)->secret.bytes();
  const gnutls_datum_t key{reinterpret_cast<unsigned char*>(const_cast<std::byte*>(secret.data())),
                           static_cast<unsigned>(secret.size())};
  const bool made =
      gnutls_psk_allocate_client_credentials(&psk_client_) >= 0 &&
      gnutls_psk_set_client_credentials2(psk_client_, &name, &key, GNUTLS_PSK_KEY_RAW) >= 0;
  return made ? "" : "out of memory for keys";
}

std::string Credentials::load_certificates(const std::string& directory) {
  if (gnutls_certificate_allocate_credentials(&certificate_) < 0) return "out of memory for keys";
  const std::string authority = directory + '/' + kCaCertificate;
  const bool demanded = verify_peer_ || is_there(authority);
  std::string authority_pem;
  if (demanded) {
    const auto content = read_key_file(authority, Kind::open);
    if (!content) return content.error();
    note_end(authority, content->text());
    authority_pem = content->text();
    const auto pem = datum_of(authority_pem);
    if (gnutls_certificate_set_x509_trust_mem(certificate_, &pem, GNUTLS_X509_FMT_PEM) < 1) {
      return authority + ": there is no certificate in it (PEM is needed)";
    }
  }
  const std::string revocations = directory + '/' + kRevocations;
  if (demanded && is_there(revocations)) {
    const auto content = read_key_file(revocations, Kind::open);
    if (!content) return content.error();
    const auto pem = datum_of(content->text());
    auto revoked = revoked_in(pem, Authority{datum_of(authority_pem)});
    const int read =
        revoked ? gnutls_certificate_set_x509_crl_mem(certificate_, &pem, GNUTLS_X509_FMT_PEM) : 0;
    if (read < 1) {
      return revocations + ": there is no revocation list in it that the authority has signed" +
             (read < 0 ? std::string{" ("} + gnutls_strerror(read) + ")" : "");
    }
    revoked_ = *std::move(revoked);
    note_end(revocations, content->text(), /*list=*/true);
  }
  return load_own_certificate(directory);
}

/// A client may be without; whether that suffices is for the server to say.
std::string Credentials::load_own_certificate(const std::string& directory) {
  const bool server = role_ == Role::server;
  const std::string chain = directory + '/' + (server ? kServerCertificate : kClientCertificate);
  const std::string key = directory + '/' + (server ? kServerKey : kClientKey);
  if (!server && !is_there(chain) && !is_there(key)) return "";
  const auto chain_content = read_key_file(chain, Kind::open);
  if (!chain_content) return chain_content.error();
  note_end(chain, chain_content->text());
  const auto key_content = read_key_file(key, Kind::secret);
  if (!key_content) return key_content.error();
  const auto chain_pem = datum_of(chain_content->text());
  const auto key_pem = datum_of(key_content->text());
  const int error = gnutls_certificate_set_x509_key_mem2(certificate_, &chain_pem, &key_pem,
                                                         GNUTLS_X509_FMT_PEM, nullptr, 0);
  if (error >= 0) return "";
  return chain + " and " + key +
         " do not belong together, or are no PEM: " + gnutls_strerror(error);
}

// ---- Files that are exchanged ------------------------------------------------------------------

tl::expected<std::shared_ptr<KeyStore>, std::string> KeyStore::open(TlsKeys keys, Log log,
                                                                    const OptionWords& words) {
  const std::shared_ptr<KeyStore> store{new KeyStore{std::move(keys), std::move(log), words}};
  store->stamp_ = store->stamp();
  auto loaded = Credentials::load(store->names_, Role::server, words);
  if (!loaded) return tl::unexpected(loaded.error());
  store->current_ = *std::move(loaded);
  store->remind(std::time(nullptr));
  return store;
}

std::string KeyStore::stamp() const {
  std::string stamp;
  if (!names_.psk.empty()) stamp += stamp_of(names_.psk);
  if (names_.certificates.empty()) return stamp;
  for (const char* const name : {kCaCertificate, kRevocations, kServerCertificate, kServerKey}) {
    stamp += stamp_of(names_.certificates + '/' + name);
  }
  return stamp;
}

std::shared_ptr<const Credentials> KeyStore::current() {
  const std::lock_guard lock{mutex_};
  // Before they are read: what is written meanwhile is looked at the next time.
  std::string now = stamp();
  if (now == stamp_) {
    remind(std::time(nullptr));
    return current_;
  }
  stamp_ = std::move(now);
  auto loaded = Credentials::load(names_, Role::server, words_);
  if (loaded) {
    current_ = *std::move(loaded);
    reminder_ = 0;
    say(LogLevel::info, "the keys have changed: new connections need the new ones");
  } else {
    say(LogLevel::error, loaded.error() + "; the keys that were read before stay in force");
  }
  remind(std::time(nullptr));
  return current_;
}

std::string KeyStore::ending() {
  const auto now = std::time(nullptr);
  const auto all = current();
  const std::string certificates = all->ending_certificates(now), lists = all->ending_lists(now);
  return certificates + (certificates.empty() || lists.empty() ? "" : "; ") + lists;
}

void KeyStore::remind(std::time_t now) {
  constexpr std::time_t kDay = 24 * 60 * 60;
  if (now < reminder_) return;
  reminder_ = now + kDay;
  const std::string doubt = doubt_about(names_);
  if (!doubt.empty()) say(LogLevel::warning, doubt);
  if (const std::string ending = current_->ending_certificates(now); !ending.empty()) {
    say(LogLevel::warning, ending +
                               ": make new certificates (rnbd-ctl certgen); clients that come "
                               "after the end are refused");
  }
  if (const std::string ending = current_->ending_lists(now); !ending.empty()) {
    say(LogLevel::warning, ending +
                               ": get a new list from the authority; whom this one withdraws stays "
                               "withdrawn, and nobody else is");
  }
}

}  // namespace rtrs::tls
