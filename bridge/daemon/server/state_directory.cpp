// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/state_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "rdma/wire/endian.hpp"

namespace rnbd {
namespace {

constexpr const char* kLock = ".lock";
constexpr const char* kNew = "new";  ///< a record has one draft: one group is saved at a time

std::string name_of(const wire::Uuid& storage) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string name;
  for (const std::uint8_t byte : storage) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

/// A file: this, and so many parts behind it.
struct Head {
  rtrs::wire::le32 origin = 0;
  rtrs::wire::le32 last = 0;
  rtrs::wire::le32 parts = 0;
  rtrs::wire::le32 reserved = 0;
};
struct Part {
  wire::Uuid session{};
  rtrs::wire::le32 number = 0;
  /// kExpelled: by the operator; kClaim: `session` is WriterRecord::claim. Older servers write 0,
  /// and take all for sessions that may come back.
  rtrs::wire::le32 kind = 0;
};
constexpr std::uint32_t kExpelled = 1;
constexpr std::uint32_t kClaim = 2;
static_assert(sizeof(Head) == 16 && sizeof(Part) == 24);
/// Two for each clone of the storage.
constexpr std::size_t kMaxParts = 1024;

std::size_t parts_in(const WriterRecord& record) {
  return record.parts.size() + record.expelled.size() + (record.claim == wire::Uuid{} ? 0 : 1);
}

std::vector<std::byte> bytes_of(const WriterRecord& record) {
  Head head;
  head.origin = record.origin;
  head.last = record.last;
  head.parts = static_cast<std::uint32_t>(parts_in(record));
  std::vector<std::byte> bytes(sizeof(Head) + parts_in(record) * sizeof(Part));
  std::memcpy(bytes.data(), &head, sizeof(head));
  std::size_t at = sizeof(Head);
  const auto add = [&](const WriterRecord::Part& known, std::uint32_t kind) {
    Part part;
    part.session = known.session;
    part.number = known.number;
    part.kind = kind;
    std::memcpy(bytes.data() + at, &part, sizeof(part));
    at += sizeof(part);
  };
  for (const WriterRecord::Part& known : record.parts) add(known, 0);
  for (const WriterRecord::Part& known : record.expelled) add(known, kExpelled);
  if (record.claim != wire::Uuid{}) add({record.claim, record.last}, kClaim);
  return bytes;
}

/// None: it is damaged.
std::optional<WriterRecord> record_of(std::span<const std::byte> bytes) {
  Head head;
  if (bytes.size() < sizeof(head)) return {};
  std::memcpy(&head, bytes.data(), sizeof(head));
  const std::uint32_t parts = head.parts;
  if (head.origin == 0 || parts > kMaxParts || bytes.size() != sizeof(head) + parts * sizeof(Part))
    return {};
  WriterRecord record{.origin = head.origin, .last = head.last, .parts = {}};
  for (std::size_t at = sizeof(head); at < bytes.size(); at += sizeof(Part)) {
    Part part;
    std::memcpy(&part, bytes.data() + at, sizeof(part));
    if (part.kind == kClaim) {
      record.claim = part.session;
      continue;
    }
    (part.kind == kExpelled ? record.expelled : record.parts)
        .push_back({part.session, part.number});
  }
  return record;
}

/// Others that may write to the directory must not make the server write elsewhere by a link, nor
/// wait by a FIFO. None: see errno.
rtrs::OwnedFd open_regular(int directory, const std::string& name, int flags) {
  constexpr int kAlways = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  rtrs::OwnedFd file{::openat(directory, name.c_str(), flags | kAlways, 0600)};
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) < 0) return {};
  if (S_ISREG(status.st_mode)) return file;
  errno = ENXIO;  // as open(2) says of a FIFO that nobody reads
  return {};
}

std::string text_of(int error) {
  if (error != ELOOP && error != ENXIO) return std::strerror(error);
  return "is not a regular file; remove it";
}

/// Files that are kept ready, so that a full disk is no reason to refuse a writer: as many storages
/// may get their first record then. Those that have one go on in the room of the older record.
constexpr unsigned kSpares = 64;
/// Of the list of evicted clients: its first two drafts. Then the old list is the next draft.
constexpr unsigned kSparesOfList = 2;
/// Bytes of a spare file: 170 parts.
constexpr off_t kSpareSize = 4096;

std::string spare_name(unsigned number) { return ".spare-" + std::to_string(number); }

/// Missing files are made as long as there is room.
void make_spares(int directory, unsigned count) {
  for (unsigned n = 0; n < count; ++n) {
    const std::string name = spare_name(n);
    const rtrs::OwnedFd file{
        ::openat(directory, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
    if (!file) {
      if (errno == EEXIST) continue;
      return;
    }
    if (::fallocate(file.get(), 0, 0, kSpareSize) == 0) continue;
    ::unlinkat(directory, name.c_str(), 0);
    return;
  }
}

/// False: there is none.
bool take_spare(int directory, const std::string& name) {
  for (unsigned n = 0; n < kSpares; ++n) {
    if (::renameat(directory, spare_name(n).c_str(), directory, name.c_str()) == 0) return true;
  }
  return false;
}

bool has_no_room(int error) { return error == ENOSPC || error == EDQUOT; }
bool lacks_descriptors(int error) { return error == EMFILE || error == ENFILE; }

/// Errors: an errno. Overwrites the content, and only then makes the file shorter: it keeps its
/// room.
tl::expected<rtrs::OwnedFd, int> write_unsynced(int directory, const std::string& name,
                                                std::span<const std::byte> bytes) {
  rtrs::OwnedFd file = open_regular(directory, name, O_WRONLY | O_CREAT);
  if (!file) return tl::unexpected(errno);
  const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
  if (written < 0) return tl::unexpected(errno);
  if (static_cast<std::size_t>(written) != bytes.size()) return tl::unexpected(ENOSPC);
  if (::ftruncate(file.get(), written) < 0) return tl::unexpected(errno);
  return file;
}

/// 0 or an errno.
int write_file(int directory, const std::string& name, std::span<const std::byte> bytes) {
  const auto file = write_unsynced(directory, name, bytes);
  if (!file) return file.error();
  return ::fsync(file->get()) < 0 ? errno : 0;
}

/// The same after an attempt that has failed with `error`, where the disk may be full.
int write_again(int error, int directory, const std::string& name,
                std::span<const std::byte> bytes) {
  if (!has_no_room(error)) return error;
  return take_spare(directory, name) ? write_file(directory, name, bytes) : error;
}

int write_draft(int directory, const std::string& name, std::span<const std::byte> bytes) {
  return write_again(write_file(directory, name, bytes), directory, name, bytes);
}

/// Drafts that are open at a time.
constexpr std::size_t kMostDrafts = 32;
/// Threads that sync them. The file system commits, and the disk flushes its cache, once for those
/// that ask meanwhile.
constexpr std::size_t kMostSyncs = 8;

/// A record on its way to its place.
struct Draft {
  std::string name;   ///< of the record
  std::string draft;  ///< of the file until then
  std::vector<std::byte> bytes;
  rtrs::OwnedFd file{};
  bool written = false;  ///< with this result, so far
  int error = 0;         ///< errno
};

/// Runs `work` with each draft, on several threads if there are many.
template <class Work>
void for_each_at_once(std::span<Draft> drafts, Work work) {
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < drafts.size(); i = next++) work(drafts[i]);
  };
  std::vector<std::jthread> others;
  try {
    while (others.size() + 1 < std::min(drafts.size(), kMostSyncs)) others.emplace_back(run);
  } catch (const std::exception&) {
    // Those that have started, and this one, do it all.
  }
  run();
}

/// 0 or an errno. The disk begins with the draft, and fsync(2) waits for the rest. Not all file
/// systems can do that: then fsync(2) does all.
int begin_sync(const rtrs::OwnedFd& file) {
  if (::sync_file_range(file.get(), 0, 0, SYNC_FILE_RANGE_WRITE) == 0) return 0;
  return errno == ESPIPE || errno == EINVAL || errno == ENOSYS ? 0 : errno;
}

/// The first drafts become durable: all, or as many as descriptors last for, but at least one.
/// Returns their number. Their errors tell of those that do not.
std::size_t write_drafts(int directory, std::span<Draft> drafts) {
  std::size_t count = 0;
  for (std::size_t open = 0; count < drafts.size(); ++count) {
    Draft& each = drafts[count];
    if (each.error != 0) continue;
    auto file = write_unsynced(directory, each.draft, each.bytes);
    each.error = file ? begin_sync(*file) : file.error();
    if (open > 0 && lacks_descriptors(each.error)) {
      each.error = 0;
      break;
    }
    each.written = true;
    if (!file) continue;
    each.file = *std::move(file);
    ++open;
  }
  const std::span<Draft> written = drafts.first(count);
  for_each_at_once(written, [](Draft& each) {
    if (each.file && each.error == 0 && ::fsync(each.file.get()) < 0) each.error = errno;
  });
  for (Draft& each : written) each.file = {};
  for (Draft& each : written) {
    if (each.written && each.error != 0)
      each.error = write_again(each.error, directory, each.draft, each.bytes);
  }
  return count;
}

/// Puts the draft in the place of the record: the old file is the next draft. 0 or an errno.
int replace(int directory, const std::string& draft, const std::string& name) {
  if (::renameat2(directory, draft.c_str(), directory, name.c_str(), RENAME_EXCHANGE) == 0)
    return 0;
  // There is no record yet, or the file system cannot do that (NFS).
  return ::renameat(directory, draft.c_str(), directory, name.c_str()) < 0 ? errno : 0;
}

}  // namespace

tl::expected<std::unique_ptr<ReservationFiles>, std::string> ReservationFiles::open(
    const std::string& directory) {
  std::error_code failure;
  const bool existed = !std::filesystem::create_directories(directory, failure);
  rtrs::OwnedFd fd{failure ? -1 : ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!failure && fd.get() < 0) failure = {errno, std::generic_category()};
  if (!failure && ::faccessat(fd.get(), ".", W_OK | X_OK, AT_EACCESS) < 0)
    failure = {errno, std::generic_category()};
  if (failure) return tl::unexpected(directory + ": " + failure.message());
  rtrs::OwnedFd lock = open_regular(fd.get(), kLock, O_RDWR | O_CREAT);
  if (!lock || (::flock(lock.get(), LOCK_EX | LOCK_NB) < 0 && errno != EWOULDBLOCK)) {
    return tl::unexpected(directory + '/' + kLock + ": " + text_of(errno));
  }
  make_spares(fd.get(), kSpares);
  ::flock(lock.get(), LOCK_UN);
  return std::unique_ptr<ReservationFiles>{
      new ReservationFiles{std::move(fd), std::move(lock), directory, existed}};
}

tl::unexpected<std::string> ReservationFiles::failure(const std::string& name, int error) const {
  return tl::unexpected(path_ + '/' + name + ": " + text_of(error));
}

/// For all storage: it is not held for long.
void ReservationFiles::lock() {
  while (::flock(lock_.get(), LOCK_EX) < 0 && errno == EINTR) {
  }
}

void ReservationFiles::unlock() { ::flock(lock_.get(), LOCK_UN); }

/// An unreadable record does not count as a missing one. Otherwise a client could repeat its writes
/// over later ones of others.
tl::expected<WriterRecord, std::string> ReservationFiles::load(const wire::Uuid& storage) {
  const std::string name = name_of(storage);
  const rtrs::OwnedFd file = open_regular(directory_.get(), name, O_RDONLY);
  if (!file && errno == ENOENT) return WriterRecord{};
  if (!file) return failure(name, errno);
  std::vector<std::byte> bytes(sizeof(Head) + kMaxParts * sizeof(Part) + 1);
  const ssize_t count = ::read(file.get(), bytes.data(), bytes.size());
  if (count < 0) return failure(name, errno);
  if (auto record = record_of(std::span{bytes}.first(static_cast<std::size_t>(count)))) {
    return *std::move(record);
  }
  return tl::unexpected(path_ + '/' + name +
                        ": is damaged; if no client has been cut off while it wrote, remove it");
}

tl::expected<void, std::string> ReservationFiles::save(const wire::Uuid& storage,
                                                       const WriterRecord& record) {
  const Entry entry{storage, record};
  return save_all({&entry, 1}).front();
}

/// A power cut leaves each record as it was or as it is now, because its draft is durable before it
/// takes the place of the old one. No result is told before the directory is durable, so all
/// records are that a client has heard of.
std::vector<WriterStore::Saved> ReservationFiles::save_all(std::span<const Entry> entries) {
  std::vector<Draft> drafts;
  drafts.reserve(entries.size());
  for (const Entry& each : entries) {
    const std::string name = name_of(each.storage);
    Draft& draft = drafts.emplace_back(Draft{name, name + "." + kNew, bytes_of(each.record)});
    // It is the draft of nothing, and its error stays.
    if (parts_in(each.record) > kMaxParts)
      draft = {.name = name, .draft = name, .bytes = {}, .error = EMLINK};
  }
  std::vector<Saved> results(entries.size());
  const auto settle = [&](Draft& draft, const std::string& name, int error) {
    if (error != 0)
      results[static_cast<std::size_t>(&draft - drafts.data())] = failure(name, error);
    draft.error = error;
  };
  for (std::span<Draft> rest{drafts}; !rest.empty();) {
    const std::size_t many = std::min(kMostDrafts, rest.size());
    rest = rest.subspan(write_drafts(directory_.get(), rest.first(many)));
  }
  bool any = false;
  for (Draft& each : drafts) {
    settle(each, each.draft, each.error);
    if (each.error != 0) continue;
    settle(each, each.name, replace(directory_.get(), each.draft, each.name));
    any = any || each.error == 0;
  }
  const int error = any && ::fsync(directory_.get()) < 0 ? errno : 0;
  for (Draft& each : drafts) {
    if (each.error == 0) settle(each, each.name, error);
  }
  return results;
}

tl::expected<LossCount, std::string> LossCount::open(const std::string& directory) {
  std::string path = directory + "/failed-flushes";
  rtrs::OwnedFd file = open_regular(AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT);
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) < 0)
    return tl::unexpected(path + ": " + text_of(errno));
  // Reserves room, in case the disk is full later. If that is impossible, the failure is reported
  // then.
  (void)::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, status.st_size, kSpareSize);
  return LossCount{std::move(file), std::move(path), static_cast<std::uint64_t>(status.st_size)};
}

tl::expected<void, std::string> LossCount::add() const {
  const char one = '+';
  if (::write(file_.get(), &one, 1) == 1 && ::fsync(file_.get()) == 0) return {};
  return tl::unexpected(path_ + ": " + std::strerror(errno));
}

tl::expected<ServerIdentity, std::string> ServerIdentity::open(const std::string& directory) {
  const std::string path = directory + "/server-id";
  const auto failed = [&](const char* why) { return tl::unexpected(path + ": " + why); };
  rtrs::OwnedFd file{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  if (!file) return failed(std::strerror(errno));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) < 0) {
    return failed(errno == EWOULDBLOCK ? "another server that runs has it" : std::strerror(errno));
  }
  std::array<char, 64> text{};
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  if (size < 0) return failed(std::strerror(errno));
  if (size > 0) {
    const std::string_view all{text.data(), static_cast<std::size_t>(size)};
    const auto id = rtrs::parse_server_id(all.substr(0, all.find('\n')));
    if (!id) return failed("is damaged; remove it, and the server gets another identity");
    return ServerIdentity{std::move(file), *id};
  }
  ServerIdentity identity{std::move(file), 0};
  if (const auto made = identity.renew(); !made) return failed(made.error().c_str());
  return identity;
}

tl::expected<void, std::string> ServerIdentity::renew() {
  std::random_device random;
  const rtrs::ServerId id = rtrs::ServerId{random()} << 32 | random() | 1;
  const std::string line = rtrs::server_id_text(id) + '\n';
  const ssize_t written = ::pwrite(file_.get(), line.data(), line.size(), 0);
  if (written < 0 || ::fsync(file_.get()) < 0) return tl::unexpected(std::strerror(errno));
  if (static_cast<std::size_t>(written) != line.size())
    return tl::unexpected(std::strerror(ENOSPC));
  id_ = id;
  return {};
}

tl::expected<void, std::string> keep_evicted(EvictedClients& clients,
                                             const std::string& directory) {
  const std::string path = directory + "/evicted";
  const auto failed = [path](int error) { return tl::unexpected(path + ": " + text_of(error)); };
  const auto folder = std::make_shared<rtrs::OwnedFd>(
      ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!*folder) return failed(errno);
  make_spares(folder->get(), kSparesOfList);
  const auto save = [folder, failed](const std::string& list) -> tl::expected<void, std::string> {
    const auto bytes = std::as_bytes(std::span{list});
    if (const int error = write_draft(folder->get(), "evicted.new", bytes)) return failed(error);
    if (const int error = replace(folder->get(), "evicted.new", "evicted")) return failed(error);
    if (::fsync(folder->get()) < 0) return failed(errno);
    return {};
  };
  std::string list;
  const rtrs::OwnedFd file = open_regular(folder->get(), "evicted", O_RDONLY);
  if (!file && errno != ENOENT) return failed(errno);
  std::array<char, 4096> part{};
  for (ssize_t size = 1; file && size > 0;) {
    size = ::read(file.get(), part.data(), part.size());
    if (size < 0) return failed(errno);
    list.append(part.data(), static_cast<std::size_t>(size));
  }
  const auto now = [] { return static_cast<std::int64_t>(std::time(nullptr)); };
  if (const auto known = clients.keep({now, save}, list); !known) {
    return tl::unexpected(path + ": is damaged at " + known.error() +
                          "; remove that line, or the file to let everybody in again");
  }
  return {};
}

std::string default_state_directory() {
  const char* const told = std::getenv("STATE_DIRECTORY");
  if (told == nullptr || *told == '\0') return "/var/lib/rnbd";
  return std::string{told, std::strcspn(told, ":")};  // systemd: several are possible
}

std::string complaint_about_state_directory(const std::string& directory, std::string search_path) {
  const std::string named = search_path;
  for (const std::string_view each : {"/%SESSNAME%", "/%IDENTITY%"}) {
    if (search_path.ends_with(each)) search_path.resize(search_path.size() - each.size());
  }
  if (search_path.empty()) return "";
  const auto inner = std::filesystem::weakly_canonical(directory);
  const auto outer = std::filesystem::weakly_canonical(search_path);
  if (std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first != outer.end()) {
    return "";
  }
  return "the state directory " + directory + " lies below the search path " + named +
         ", where clients could open it; name another --state-directory";
}

}  // namespace rnbd
