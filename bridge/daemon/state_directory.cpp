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
  return std::unique_ptr<TurnFiles>{new TurnFiles{std::move(fd)}};
}

std::optional<WriterTurn> TurnFiles::load(const wire::Uuid& storage) {
  const OwnedFd file{::openat(directory_.get(), name_of(storage).c_str(), O_RDONLY | O_CLOEXEC)};
  WriterTurn turn;
  if (file.get() < 0 || ::read(file.get(), &turn, sizeof(turn)) != sizeof(turn)) return {};
  return turn;
}

int TurnFiles::save(const wire::Uuid& storage, const WriterTurn& turn) {
  const std::string name = name_of(storage);
  const std::string draft = name + "." + kNew;
  if (const int error = write_file(directory_.get(), draft, turn)) return error;
  if (::renameat(directory_.get(), draft.c_str(), directory_.get(), name.c_str()) < 0) return errno;
  return ::fsync(directory_.get()) < 0 ? errno : 0;
}

LossCount::LossCount(const std::string& directory)
    : file_{::open((directory + "/failed-flushes").c_str(),
                   O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)} {}

std::uint64_t LossCount::count() const {
  struct stat status {};
  if (!file_ || ::fstat(file_.get(), &status) < 0) return 0;
  return static_cast<std::uint64_t>(status.st_size);
}

void LossCount::add() const {
  if (!file_) return;
  const char one = '+';
  if (::write(file_.get(), &one, 1) == 1) ::fsync(file_.get());
}

std::string default_state_directory() {
  const char* const told = std::getenv("STATE_DIRECTORY");
  if (told == nullptr || *told == '\0') return "/var/lib/rnbd";
  return std::string{told, std::strcspn(told, ":")};  // systemd: several are possible
}

}  // namespace rnbd
