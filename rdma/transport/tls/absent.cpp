// SPDX-License-Identifier: BSD-3-Clause
// The place of TLS and proofs in a build without them: nobody gets credentials, so that no session
// of TLS is ever made.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "rdma/transport/tls/credentials.hpp"
#include "rdma/transport/tls/generate.hpp"
#include "rdma/transport/tls/inspect.hpp"
#include "rdma/transport/tls/proof_keys.hpp"
#include "rdma/transport/tls/session.hpp"

namespace rtrs::tls {
namespace {

constexpr const char* kAbsent =
    "this build has no TLS and no proofs of keys (it was made with -DRNBDKIT_TLS=OFF)";

tl::unexpected<std::string> absent() { return tl::unexpected(std::string{kAbsent}); }

}  // namespace

// ---- Credentials: there are none ----------------------------------------------------------------

tl::expected<std::shared_ptr<const Credentials>, std::string> Credentials::load(
    const TlsKeys&, Role, const OptionWords&) {
  return absent();
}
Credentials::~Credentials() = default;
const Secret* Credentials::find(std::string_view) const { return nullptr; }
std::string Credentials::withdrawn(const Identity&) const { return ""; }
int Credentials::apply(gnutls_session_int*) const { return EOPNOTSUPP; }
std::string Credentials::ending(std::time_t, bool) const { return ""; }

tl::expected<std::shared_ptr<KeyStore>, std::string> KeyStore::open(TlsKeys, Log,
                                                                    const OptionWords&) {
  return absent();
}
std::shared_ptr<const Credentials> KeyStore::current() { return current_; }
std::string KeyStore::ending() { return ""; }

// ---- Sessions: create() makes none, so nothing else is called
// ------------------------------------

struct Session::Verification {};

tl::expected<std::unique_ptr<Session>, Failure> Session::create(SessionSetup) {
  return tl::unexpected(Failure{EOPNOTSUPP, kAbsent});
}
Session::~Session() = default;
const Secret* Session::claimed_key(std::string_view) { return nullptr; }
Session::Step Session::shake_hands() { return Step::failed; }
Identity Session::claim() const { return {}; }
ssize_t Session::fetch(int) { return -EOPNOTSUPP; }
bool Session::await(int) { return false; }
int Session::flush(int) { return EOPNOTSUPP; }
ssize_t Session::send(int, std::span<const iovec>) { return -EOPNOTSUPP; }
ssize_t Session::receive(int, std::span<const iovec>) { return -EOPNOTSUPP; }
bool Session::has_more() const { return false; }
void Session::end(int) {}

// ---- Keys and certificates ----------------------------------------------------------------------

std::shared_ptr<auth::ServerKeys> proof_keys(std::shared_ptr<const Credentials>) { return nullptr; }

auth::Nonce random_nonce() {
  auth::Nonce nonce{};
  if (::getentropy(nonce.data(), nonce.size()) != 0) std::abort();
  return nonce;
}

tl::expected<Issued, std::string> issue(const CertificateRequest&, const Issued*) {
  return absent();
}
tl::expected<std::string, std::string> withdraw(const Issued&, std::string_view,
                                                const std::vector<std::string>&, std::time_t,
                                                std::time_t) {
  return absent();
}
tl::expected<Content, std::string> make_psk_line(const std::string&) { return absent(); }

std::string fingerprint(const Secret&) { return ""; }
tl::expected<CertificateFacts, std::string> certificate_facts(std::string_view) { return absent(); }
tl::expected<ListFacts, std::string> list_facts(std::string_view) { return absent(); }
std::optional<std::time_t> first_end(std::string_view) { return {}; }
std::vector<std::pair<std::string, std::time_t>> ends_in(const std::string&) { return {}; }
std::optional<CertificateTimes> times_in(std::span<const unsigned char>) { return {}; }
CertificateNames names_in(std::span<const unsigned char>) { return {}; }
std::string hex_of(std::span<const unsigned char>) { return ""; }
std::string end_soon(std::time_t, std::time_t) { return ""; }
std::string list_ends_soon(std::time_t, std::time_t) { return ""; }

}  // namespace rtrs::tls
