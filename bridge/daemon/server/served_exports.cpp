// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/served_exports.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "bridge/backend/identity.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/protocol/uuid.hpp"
#include "rdma/log_about.hpp"

namespace rnbd {
namespace {

/// Others that may write to the directory must not make the server write elsewhere by a link, nor
/// wait by a FIFO.
constexpr int kAlways = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
/// Bytes; a path, a name and a UUID have less.
constexpr std::size_t kMaxRecord = 8192;

/// "": there is none that can be read.
std::string load(int directory, const std::string& file) {
  const rtrs::OwnedFd fd{::openat(directory, file.c_str(), O_RDONLY | kAlways)};
  std::string text(kMaxRecord, '\0');
  const ssize_t count = fd ? ::read(fd.get(), text.data(), text.size()) : 0;
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

/// 0 or an errno.
int save(int directory, const std::string& file, const std::string& text) {
  const std::string draft = ".new-" + std::to_string(::getpid());
  ::unlinkat(directory, draft.c_str(), 0);
  const rtrs::OwnedFd fd{
      ::openat(directory, draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | kAlways, 0600)};
  if (!fd) return errno;
  const ssize_t written = ::write(fd.get(), text.data(), text.size());
  if (written < 0) return errno;
  if (static_cast<std::size_t>(written) != text.size()) return ENOSPC;
  return ::renameat(directory, draft.c_str(), directory, file.c_str()) < 0 ? errno : 0;
}

}  // namespace

tl::expected<std::shared_ptr<ServedExports>, std::string> ServedExports::open(
    const std::string& directory, rtrs::Log log) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (failure) return tl::unexpected(directory + ": " + failure.message());
  rtrs::OwnedFd fd{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!fd) return tl::unexpected(directory + ": " + std::strerror(errno));
  return std::shared_ptr<ServedExports>{
      new ServedExports{std::move(fd), directory, std::move(log)}};
}

void ServedExports::serve(const std::string& name, const std::string& path,
                          const wire::Uuid& storage) {
  const rtrs::LogAbout about{{.event = "export_replaced", .device = name}};
  const std::string place = "\n" + name + "\n" + path, uuid = uuid_text(storage);
  // A name may have letters that a file's name has not.
  const std::string file = uuid_text(uuid_of(name));
  const std::lock_guard lock{mutex_};
  const std::string before = load(directory_.get(), file);
  const bool first = known_.insert(name).second;
  if (before == uuid + place) return;
  if (first && before.ends_with(place)) {
    log_(rtrs::LogLevel::warning,
         "export " + in_quotes(name) + ": " + path + " is other storage than before this start: " +
             uuid + ", which was " + before.substr(0, before.size() - place.size()) +
             "; clients that had the old one open get EIO until they connect anew, and what was "
             "in it is here only if it was copied");
  }
  if (const int error = save(directory_.get(), file, uuid + place)) {
    log_(rtrs::LogLevel::warning, "export " + in_quotes(name) + ": cannot record its storage, " +
                                      path_ + ": " + std::strerror(error) +
                                      ": the next start may not tell if that was replaced");
  }
}

}  // namespace rnbd
