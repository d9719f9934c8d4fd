// SPDX-License-Identifier: BSD-3-Clause
// Keys and certificates, read from the files that a user names.
#pragma once

#include <ctime>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/core/identity.hpp"
#include "rdma/core/option_words.hpp"
#include "rdma/log.hpp"
#include "rdma/tls.hpp"
#include "rdma/transport/tls/psk_file.hpp"

struct gnutls_session_int;
struct gnutls_certificate_credentials_st;
struct gnutls_psk_client_credentials_st;
struct gnutls_psk_server_credentials_st;
struct gnutls_priority_st;

namespace rtrs::tls {

enum class Role { client, server };

/// All that one end shows and demands; does not change.
///
/// Threads: any.
class Credentials {
 public:
  /// `words` name the options for keys, and must outlive the credentials.
  ///
  /// Errors: a sentence that names the file and says what to do.
  static tl::expected<std::shared_ptr<const Credentials>, std::string> load(
      const TlsKeys& keys, Role role, const OptionWords& words = kProgramWords);
  ~Credentials();
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;

  Role role() const { return role_; }
  const OptionWords& words() const { return words_; }
  bool has_psk() const { return !keys_.empty(); }
  bool has_certificates() const { return certificate_ != nullptr; }
  bool verifies_peer() const { return verify_peer_; }
  /// "TLS 1.3", or "TLS 1.2 or 1.3".
  const char* versions() const { return tls12_ ? "TLS 1.2 or 1.3" : "TLS 1.3"; }
  /// The name of a client's shared key.
  const std::string& key_name() const { return key_name_; }
  /// Null: there is none of this name.
  const Secret* find(std::string_view key_name) const;

  /// The reason why a user who was let in by former ones would not be now; "": he would. A shared
  /// key counts by its name, a certificate by the lists of revoked ones.
  std::string withdrawn(const Identity& user) const;

  /// The certificates that are over or end within 30 days, as a sentence; "" = none is.
  std::string ending_certificates(std::time_t now) const { return ending(now, false); }
  /// The revocation lists that are over or end within 7 days, likewise.
  std::string ending_lists(std::time_t now) const { return ending(now, true); }

  /// Makes a new session use them. Errors: of GnuTLS.
  int apply(gnutls_session_int* session) const;

 private:
  Credentials(Role role, const OptionWords& words) : role_{role}, words_{words} {}
  std::string load_psk(const TlsKeys& keys);
  std::string load_certificates(const std::string& directory);
  std::string prepare_priority();
  void note_end(const std::string& file, std::string_view pem, bool list = false);
  std::string ending(std::time_t now, bool lists) const;
  std::string load_own_certificate(const std::string& directory);

  Role role_;
  const OptionWords& words_;
  bool verify_peer_ = true;
  bool tls12_ = false;
  std::vector<PskKey> keys_;
  struct End {
    std::string file;
    std::time_t when;
    bool list;  ///< of revocations
  };
  std::vector<End> ends_;
  std::set<std::string> revoked_;  ///< serial numbers, in hexadecimal digits
  std::string key_name_;
  gnutls_certificate_credentials_st* certificate_ = nullptr;
  gnutls_psk_client_credentials_st* psk_client_ = nullptr;
  gnutls_psk_server_credentials_st* psk_server_ = nullptr;
  gnutls_priority_st* priority_ = nullptr;  ///< all sessions share it, which saves each some KiB
};

/// The credentials of a server, whose files may be exchanged while it runs: who comes then is
/// measured by the new ones. Files that cannot be used leave the old ones in force.
///
/// Threads: any.
class KeyStore {
 public:
  /// `words` and errors: as Credentials::load().
  static tl::expected<std::shared_ptr<KeyStore>, std::string> open(
      TlsKeys keys, Log log, const OptionWords& words = kProgramWords);

  /// Once a day it also reminds of certificates that end soon.
  std::shared_ptr<const Credentials> current();
  /// Both sentences of the current ones.
  std::string ending();

 private:
  KeyStore(TlsKeys keys, Log log, const OptionWords& words)
      : names_{std::move(keys)}, log_{std::move(log)}, words_{words} {}
  std::string stamp() const;
  void remind(std::time_t now);
  void say(LogLevel level, const std::string& text) const {
    if (log_) log_(level, text);
  }

  TlsKeys names_;
  Log log_;
  const OptionWords& words_;
  std::mutex mutex_;
  std::shared_ptr<const Credentials> current_;
  std::string stamp_;         ///< of the files as they were looked at last
  std::time_t reminder_ = 0;  ///< when the next one is due
};

}  // namespace rtrs::tls
