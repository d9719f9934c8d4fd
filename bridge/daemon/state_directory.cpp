#include "bridge/daemon/state_directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace rnbd {
namespace {

constexpr const char* kNew = "new";  ///< one turn is saved at a time

std::string name_of(const wire::Uuid& storage) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string name;
  for (const std::uint8_t byte : storage) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

/// 0 or an errno.
int write_file(int directory, const std::string& name, const WriterTurn& turn) {
  const OwnedFd file{
      ::openat(directory, name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600)};
  if (file.get() < 0) return errno;
  const ssize_t written = ::write(file.get(), &turn, sizeof(turn));
  if (written < 0) return errno;
  if (written != sizeof(turn)) return ENOSPC;
  return ::fsync(file.get()) < 0 ? errno : 0;
}

}  // namespace

tl::expected<std::unique_ptr<TurnFiles>, std::string> TurnFiles::open(
    const std::string& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  OwnedFd fd{failure ? -1 : ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!failure && fd.get() < 0) failure = {errno, std::generic_category()};
  if (!failure && ::faccessat(fd.get(), ".", W_OK | X_OK, AT_EACCESS) < 0)
    failure = {errno, std::generic_category()};
  if (failure) return tl::unexpected(directory + ": " + failure.message());
  return std::unique_ptr<TurnFiles>{new TurnFiles{std::move(fd), directory}};
}

tl::unexpected<std::string> TurnFiles::failure(const std::string& name, int error) const {
  return tl::unexpected(path_ + '/' + name + ": " + std::strerror(error));
}

/// What cannot be read is no sign that there was nothing: taken for that, it would let somebody
/// repeat a write over those of others.
tl::expected<std::optional<WriterTurn>, std::string> TurnFiles::load(const wire::Uuid& storage) {
  const std::string name = name_of(storage);
  const OwnedFd file{::openat(directory_.get(), name.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) return failure(name, errno);
  WriterTurn turn;
  const ssize_t count = ::read(file.get(), &turn, sizeof(turn));
  if (count < 0) return failure(name, errno);
  if (count == sizeof(turn) && turn.number != 0) return turn;
  return tl::unexpected(path_ + '/' + name +
                        ": is damaged; if no client has been cut off while it wrote, remove it");
}

tl::expected<void, std::string> TurnFiles::save(const wire::Uuid& storage, const WriterTurn& turn) {
  const std::string name = name_of(storage);
  const std::string draft = name + "." + kNew;
  if (const int error = write_file(directory_.get(), draft, turn)) return failure(draft, error);
  if (::renameat(directory_.get(), draft.c_str(), directory_.get(), name.c_str()) < 0)
    return failure(name, errno);
  if (::fsync(directory_.get()) < 0) return failure(name, errno);
  return {};
}

tl::expected<LossCount, std::string> LossCount::open(const std::string& directory) {
  std::string path = directory + "/failed-flushes";
  OwnedFd file{::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)};
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) < 0)
    return tl::unexpected(path + ": " + std::strerror(errno));
  return LossCount{std::move(file), std::move(path), static_cast<std::uint64_t>(status.st_size)};
}

tl::expected<void, std::string> LossCount::add() const {
  const char one = '+';
  if (::write(file_.get(), &one, 1) == 1 && ::fsync(file_.get()) == 0) return {};
  return tl::unexpected(path_ + ": " + std::strerror(errno));
}

std::string default_state_directory() {
  const char* const told = std::getenv("STATE_DIRECTORY");
  if (told == nullptr || *told == '\0') return "/var/lib/rnbd";
  return std::string{told, std::strcspn(told, ":")};  // systemd: several are possible
}

}  // namespace rnbd
