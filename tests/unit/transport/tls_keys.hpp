// SPDX-License-Identifier: BSD-3-Clause
// Keys and certificates for tests, in a directory of their own.
#pragma once

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "rdma/tls.hpp"
#include "rdma/transport/tls/generate.hpp"

namespace rtrs::test {

class KeyDirectory {
 public:
  KeyDirectory() {
    std::string pattern = std::filesystem::temp_directory_path() / "rnbd-keys-XXXXXX";
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  KeyDirectory(const KeyDirectory&) = delete;
  KeyDirectory& operator=(const KeyDirectory&) = delete;
  ~KeyDirectory() { std::filesystem::remove_all(path_); }

  std::string file(const std::string& name) const { return path_ / name; }
  std::string path() const { return path_; }

  /// Replaces a file, as those who are careful do.
  std::string write(const std::string& name, std::string_view text, mode_t mode = 0600) const {
    const std::string fresh = file(name + ".new");
    std::ofstream{fresh} << text;
    chmod(fresh.c_str(), mode);
    std::filesystem::rename(fresh, file(name));
    return file(name);
  }

  TlsKeys psk(const std::string& name, const std::string& hex) const {
    return {.psk = write(name + ".psk", name + ":" + hex + "\n"),
            .certificates = "",
            .username = "",
            .verify_peer = true};
  }

 private:
  std::filesystem::path path_;
};

/// A key whose bytes are all the same, as hexadecimal digits.
inline std::string hex_key(char digit = '7') { return std::string(64, digit); }

/// An authority, and what it issues.
class TestAuthority {
 public:
  using Request = tls::CertificateRequest;

  TestAuthority()
      : authority_{make({.use = Request::For::authority, .common_name = "test CA", .hosts = {}},
                        nullptr)} {}

  static constexpr std::time_t kDay = 86400;

  tls::Issued issue(Request request) const { return make(std::move(request), &authority_); }

  /// A directory for a server that is 127.0.0.1, and a client of this name.
  TlsKeys fill(const KeyDirectory& into, const std::string& client = "host1") const {
    put(into, "server",
        issue({.use = Request::For::server,
               .common_name = "storage",
               .hosts = {"127.0.0.1", "localhost"}}));
    put(into, "client", issue({.use = Request::For::client, .common_name = client, .hosts = {}}));
    into.write("ca-cert.pem", authority_.certificate, 0644);
    return {.psk = "", .certificates = into.path(), .username = "", .verify_peer = true};
  }
  static void put(const KeyDirectory& into, const std::string& who, const tls::Issued& issued) {
    into.write(who + "-cert.pem", issued.certificate, 0644);
    into.write(who + "-key.pem", issued.key.text());
  }

 private:
  static tls::Issued make(Request request, const tls::Issued* by) {
    if (request.begin == 0) request.begin = std::time(nullptr) - kDay;
    if (request.end == 0) request.end = std::time(nullptr) + kDay;
    auto issued = tls::issue(request, by);
    REQUIRE_MESSAGE(issued.has_value(), (issued ? "" : issued.error()));
    return *std::move(issued);
  }

  tls::Issued authority_;
};

}  // namespace rtrs::test
