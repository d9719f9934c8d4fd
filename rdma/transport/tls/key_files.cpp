// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tls/key_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "rdma/owned_fd.hpp"
#include "rdma/tls.hpp"

namespace rtrs::tls {
namespace {

constexpr off_t kLargest = 4 << 20;  ///< bytes; thousands of keys, or a long list of authorities

tl::unexpected<std::string> fail(const std::string& path, const std::string& why) {
  return tl::unexpected(path + ": " + why);
}

/// The place of a file. systemd keeps the file FILE of a directory that it hands over as NAME_FILE.
std::string place_of(const std::string& path) {
  const char* const directory = std::getenv("CREDENTIALS_DIRECTORY");
  if (!path.starts_with(kCredential) || directory == nullptr) return path;
  std::string name = path.substr(kCredential.size());
  std::ranges::replace(name, '/', '_');
  return std::string{directory} + '/' + name;
}

/// Advice for a file that cannot be opened. A unit hides and forbids more than a shell does.
std::string advice_for(int error, const std::string& path) {
  if (path.starts_with(kCredential)) {
    return " (systemd has handed over no credential of this name; look at LoadCredential= of the "
           "unit)";
  }
  const bool in_unit = std::getenv("INVOCATION_ID") != nullptr;
  const bool hidden =
      std::ranges::any_of(std::initializer_list<std::string_view>{"/home/", "/root/", "/run/user/"},
                          [&](std::string_view folder) { return path.starts_with(folder); });
  constexpr const char* kHandOver = "let LoadCredential= hand it over, and write credential:NAME";
  if (in_unit && hidden && (error == ENOENT || error == EACCES)) {
    return std::string{" (the unit may hide this directory from its program, see ProtectHome=: "} +
           "keep keys below /etc/rnbd, or " + kHandOver + ")";
  }
  if (error == ENOENT) return " (name an existing file)";
  if (error != EACCES) return "";
  return std::string{" (the user that this program runs as must be able to read it"} +
         (in_unit ? std::string{"; in a unit with a user of its own "} + kHandOver : "") + ")";
}

}  // namespace

tl::expected<Content, std::string> read_key_file(const std::string& path, Kind kind) {
  // A FIFO without a writer would hold up whoever opens it.
  const OwnedFd file{::open(place_of(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    const int error = errno;
    return fail(path, std::strerror(error) + advice_for(error, path));
  }
  if (!S_ISREG(status.st_mode)) return fail(path, "is not a regular file; name one");
  if (kind == Kind::secret && (status.st_mode & (S_IRWXO | S_IWGRP | S_IXGRP)) != 0) {
    return fail(path, "others may read it, or its group may change it; run: chmod 600 " + path);
  }
  if (status.st_size > kLargest) return fail(path, "is larger than 4 MiB; name another file");
  std::vector<char> bytes(static_cast<std::size_t>(status.st_size));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(path, std::strerror(errno));
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return Content{std::move(bytes)};
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::stat(place_of(path).c_str(), &status) == 0 || errno != ENOENT;
}

std::string stamp_of(const std::string& path) {
  struct stat status {};
  if (::stat(place_of(path).c_str(), &status) != 0) return "-;";
  std::string stamp;
  for (const auto part :
       {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
        static_cast<std::uint64_t>(status.st_size),
        static_cast<std::uint64_t>(status.st_mtim.tv_sec),
        static_cast<std::uint64_t>(status.st_mtim.tv_nsec),
        static_cast<std::uint64_t>(status.st_ctim.tv_sec),
        static_cast<std::uint64_t>(status.st_ctim.tv_nsec)}) {
    stamp += std::to_string(part) + '.';
  }
  return stamp + ';';
}

}  // namespace rtrs::tls
