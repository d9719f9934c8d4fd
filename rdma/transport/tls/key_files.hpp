// SPDX-License-Identifier: BSD-3-Clause
// Files with secrets in them.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/transport/tls/secret.hpp"

namespace rtrs::tls {

/// The names that nbdkit, libnbd and qemu use in a directory of certificates.
inline constexpr const char* kCaCertificate = "ca-cert.pem";
inline constexpr const char* kRevocations = "ca-crl.pem";
inline constexpr const char* kServerCertificate = "server-cert.pem";
inline constexpr const char* kServerKey = "server-key.pem";
inline constexpr const char* kClientCertificate = "client-cert.pem";
inline constexpr const char* kClientKey = "client-key.pem";

/// A file's content, overwritten at its end.
class Content {
 public:
  explicit Content(std::vector<char> bytes) : bytes_{std::move(bytes)} {}
  Content(Content&&) noexcept = default;
  Content& operator=(Content&&) noexcept = default;
  ~Content() { forget(std::as_writable_bytes(std::span{bytes_})); }
  std::string_view text() const { return {bytes_.data(), bytes_.size()}; }

 private:
  std::vector<char> bytes_;
};

enum class Kind { secret, open };

/// Reads a file; one with secrets must not be readable for all, nor writable for its group. Here
/// and below `credential:NAME` is a credential of systemd, and `credential:NAME/FILE` one of a
/// directory.
///
/// Errors: a sentence that names the file and says what to do.
tl::expected<Content, std::string> read_key_file(const std::string& path, Kind kind);

/// True when there is something of this name, whether it can be read or not.
bool is_there(const std::string& path);

/// A text that changes when a file is written or replaced.
std::string stamp_of(const std::string& path);

}  // namespace rtrs::tls
