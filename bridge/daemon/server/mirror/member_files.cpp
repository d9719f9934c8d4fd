// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/mirror/member_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>

#include "bridge/protocol/uuid.hpp"

namespace rnbd {
namespace {

/// A group's file has less: 17 maps of 2^22 regions.
constexpr off_t kMaxFile = 16 << 20;
constexpr const char* kDissolved = ".dissolved";

std::string words_of(int error) {
  const bool odd = error == ELOOP || error == ENXIO;
  return odd ? "is not a regular file; remove it" : std::strerror(error);
}

/// Others that may write to the directory must not make the server write elsewhere by a link, nor
/// wait by a FIFO. None: see errno.
rtrs::OwnedFd open_member(int directory, const std::string& name, int flags) {
  constexpr int kAlways = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  rtrs::OwnedFd file{::openat(directory, name.c_str(), flags | kAlways, 0600)};
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) < 0) return {};
  if (S_ISREG(status.st_mode)) return file;
  errno = ENXIO;
  return {};
}

/// 0 or an errno.
int put(int file, std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : ENOSPC;
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return 0;
}

int put(int file, const std::vector<mirror::Patch>& patches) {
  for (const mirror::Patch& patch : patches)
    if (const int error = put(file, patch.offset, patch.bytes)) return error;
  return 0;
}

int make_durable(int file) { return ::fdatasync(file) < 0 ? errno : 0; }

int write_all(int file, const mirror::Save& save) {
  if (int error = put(file, save.first)) return error;
  if (!save.first.empty())
    if (int error = make_durable(file)) return error;
  if (save.head) {
    if (int error = put(file, save.head->offset, save.head->bytes)) return error;
    if (int error = make_durable(file)) return error;
  }
  return put(file, save.rest);
}

class OpenMember final : public mirror::MemberFile {
 public:
  OpenMember(rtrs::OwnedFd file, std::string path)
      : file_{std::move(file)}, path_{std::move(path)} {}

  tl::expected<void, std::string> write(const mirror::Save& save) override {
    const int error = write_all(file_.get(), save);
    if (error == 0) return {};
    return tl::unexpected(path_ + ": " + std::strerror(error));
  }

 private:
  rtrs::OwnedFd file_;
  const std::string path_;
};

/// Holds no descriptor. `directory` belongs to the store, which outlives it.
class ClosedMember final : public mirror::MemberFile {
 public:
  ClosedMember(int directory, std::string path, std::string name)
      : directory_{directory}, path_{std::move(path)}, name_{std::move(name)} {}

  tl::expected<void, std::string> write(const mirror::Save& save) override {
    const rtrs::OwnedFd file = open_member(directory_, name_, O_RDWR);
    const int error = file ? write_all(file.get(), save) : errno;
    if (error == 0) return {};
    return tl::unexpected(path_ + '/' + name_ + ": " + words_of(error));
  }

 private:
  const int directory_;
  const std::string path_;
  const std::string name_;
};

/// 0 or an errno.
int read_all(int file, std::vector<std::byte>& bytes) {
  struct stat status {};
  if (::fstat(file, &status) < 0) return errno;
  if (status.st_size > kMaxFile) return EFBIG;
  bytes.resize(static_cast<std::size_t>(status.st_size));
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t count =
        ::pread(file, bytes.data() + have, bytes.size() - have, static_cast<off_t>(have));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) break;
    have += static_cast<std::size_t>(count);
  }
  bytes.resize(have);
  return 0;
}

/// 0 or an errno: EEXIST, if something has the new name.
int rename_beside(int directory, const std::string& name, const std::string& to) {
  if (::renameat2(directory, name.c_str(), directory, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;  // NFS cannot rename so
  struct stat status {};
  if (::fstatat(directory, to.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  return ::renameat(directory, name.c_str(), directory, to.c_str()) == 0 ? 0 : errno;
}

/// Each record that was taken away stays: the last one may have been the mistake. 0 or an errno.
int set_aside(int directory, const std::string& from, const std::string& name) {
  constexpr unsigned kMostFreed = 1000;
  int error = EEXIST;
  for (unsigned i = 0; error == EEXIST && i < kMostFreed; ++i)
    error = rename_beside(directory, from, name + ".freed" + (i == 0 ? "" : std::to_string(i)));
  return error;
}

}  // namespace

/// A record that was taken away just before the server died may be there again after a loss of
/// power. Until then plain clients would have been served.
tl::expected<std::shared_ptr<MemberFiles>, std::string> MemberFiles::open(
    const std::string& directory, Keep keep) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  rtrs::OwnedFd fd{failure ? -1 : ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!failure && !fd) failure = {errno, std::generic_category()};
  if (!failure && ::fsync(fd.get()) < 0) failure = {errno, std::generic_category()};
  if (failure) return tl::unexpected(directory + ": " + failure.message());
  return std::shared_ptr<MemberFiles>{new MemberFiles{std::move(fd), directory, keep}};
}

/// A record that cannot be read is no sign that there is none: taken for that, a client that is
/// superseded would be served.
tl::expected<std::optional<mirror::FoundMember>, rtrs::Failure> MemberFiles::load(
    const wire::Uuid& storage) {
  const std::string name = uuid_text(storage);
  const auto failed = [&](int error, const std::string& why) {
    return tl::unexpected(rtrs::Failure{error, path_ + '/' + name + ": " + why});
  };
  rtrs::OwnedFd file = open_member(directory_.get(), name, O_RDWR);
  if (!file && errno == ENOENT) return std::nullopt;
  if (const int error = errno; !file) return failed(error, words_of(error));
  std::vector<std::byte> bytes;
  if (const int error = read_all(file.get(), bytes)) return failed(error, std::strerror(error));
  auto image = mirror::load_image(bytes);
  if (!image)
    return failed(image.error().error, image.error().text +
                                           "; if another member is in step, remove it and restart "
                                           "this server: it is brought up to date as a new member");
  return mirror::FoundMember{std::move(*image), file_of(name, std::move(file))};
}

std::unique_ptr<mirror::MemberFile> MemberFiles::file_of(const std::string& name,
                                                         rtrs::OwnedFd file) const {
  if (keep_ == Keep::closed) return std::make_unique<ClosedMember>(directory_.get(), path_, name);
  return std::make_unique<OpenMember>(std::move(file), path_ + '/' + name);
}

/// A draft takes no room that others need.
mirror::Creation MemberFiles::create(const wire::Uuid& storage,
                                     const std::vector<std::byte>& image) {
  const std::string name = uuid_text(storage);
  const std::string draft = name + ".new";
  const auto words = [&](const std::string& which, int error) {
    return path_ + '/' + which + ": " + words_of(error);
  };
  rtrs::OwnedFd file = open_member(directory_.get(), draft, O_RDWR | O_CREAT);
  if (!file) return {.trouble = words(draft, errno)};
  int error = ::ftruncate(file.get(), 0) < 0 ? errno : put(file.get(), 0, image);
  if (error == 0 && ::fsync(file.get()) < 0) error = errno;
  // Nothing that may fail stands between the new name and the answer, but for the folder's fsync.
  mirror::Creation made{.file = file_of(name, std::move(file)), .trouble = words(name, EIO)};
  if (error == 0 && ::renameat(directory_.get(), draft.c_str(), directory_.get(), name.c_str()) < 0)
    error = errno;
  if (error != 0) {
    ::unlinkat(directory_.get(), draft.c_str(), 0);
    return {.trouble = words(draft, error)};
  }
  (void)set_aside(directory_.get(), name + kDissolved, name);
  if (::fsync(directory_.get()) == 0) made.trouble.clear();
  return made;
}

/// The group may still come to it by its former servers.
mirror::Removal MemberFiles::dissolve(const wire::Uuid& storage) {
  const std::string name = uuid_text(storage);
  const int directory = directory_.get();
  const std::string to = name + kDissolved;
  const int result = ::renameat(directory, name.c_str(), directory, to.c_str());
  return taken_away(name, result == 0 ? 0 : errno);
}

wire::Uuid MemberFiles::former_group(const wire::Uuid& storage) {
  const rtrs::OwnedFd file =
      open_member(directory_.get(), uuid_text(storage) + kDissolved, O_RDONLY);
  std::vector<std::byte> bytes;
  if (!file || read_all(file.get(), bytes) != 0) return {};
  const auto image = mirror::load_image(bytes);
  return image ? image->state.group : wire::Uuid{};
}

/// One that is not seen would count as none, and its vote as a blank one.
tl::expected<std::vector<wire::Uuid>, std::string> MemberFiles::all() const {
  std::vector<wire::Uuid> found;
  std::error_code failure;
  std::filesystem::directory_iterator entry{path_, failure};
  for (; !failure && entry != std::filesystem::directory_iterator{}; entry.increment(failure))
    if (const auto uuid = parse_uuid(entry->path().filename().string())) found.push_back(*uuid);
  if (failure) return tl::unexpected(path_ + ": " + failure.message());
  return found;
}

mirror::Removal MemberFiles::remove(const wire::Uuid& storage) {
  const std::string name = uuid_text(storage);
  const int former = set_aside(directory_.get(), name + kDissolved, name);
  const int error = set_aside(directory_.get(), name, name);
  return taken_away(name, error == ENOENT ? former : error);
}

/// `error`: of the attempt.
mirror::Removal MemberFiles::taken_away(const std::string& name, int error) const {
  const std::string path = path_ + '/' + name + ": ";
  if (error != 0) return {.gone = false, .trouble = path + std::strerror(error)};
  if (::fsync(directory_.get()) == 0) return {.gone = true};
  return {.gone = true,
          .trouble = path + "it was taken away, and may be there again after a loss of power: " +
                     std::strerror(errno)};
}

}  // namespace rnbd
