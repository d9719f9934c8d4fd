// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/file.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "bridge/backend/advice.hpp"
#include "bridge/backend/file_queue.hpp"
#include "bridge/backend/identity.hpp"
#include "bridge/backend/specification.hpp"

namespace rnbd {

namespace {

class FileBackend final : public Backend {
 public:
  explicit FileBackend(std::unique_ptr<FileState> state) : state_{std::move(state)} {}
  const BackendInfo& info() const override { return state_->info; }
  std::uint64_t present_size() override { return present_size_of(*state_); }
  std::optional<std::uint64_t> shrunk_to() const override { return rnbd::shrunk_to(*state_); }
  Whereabouts whereabouts() const override { return whereabouts_of(*state_); }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) override {
    rtrs::OwnedFd flush_fd;
    if (!state_->info.read_only) {
      flush_fd = take_flush_fd(*state_);
      if (!flush_fd) return nullptr;
    }
    return std::make_unique<FileQueue>(*state_, *reactor, std::move(flush_fd));
  }

 private:
  std::unique_ptr<FileState> state_;
};

// ---- Opening ------------------------------------------------------------------------------------

/// Negative errno or a descriptor.
int open_plain(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags);
  return fd < 0 ? -errno : fd;
}

std::string advice_for(int error, const std::string& path, bool writing) {
  switch (error) {
    case ENOENT:
      return advice_for_missing(path);
    case EACCES:
    case EPERM:
      return std::string{"permission denied; let the server's user "} +
             (writing ? "read and write it, or export it read-only" : "read it");
    case EROFS:
      return "it is on a read-only file system; export it read-only";
    case EISDIR:
      return "it is a directory; name a file in it";
    case EBUSY:
      return "it is mounted or in use by another program (see lsblk and fuser); release it first, "
             "or export it read-only";
    case ENXIO:
    case ENODEV:
    case ENOMEDIUM:
      return "there is no device behind it (" + std::string{std::strerror(error)} +
             "); check that it is plugged in and its driver loaded";
    case EMFILE:
    case ENFILE:
      return std::string{std::strerror(error)} + "; let the server have more (LimitNOFILE=)";
    default:
      return std::strerror(error);
  }
}

// ---- Finding out --------------------------------------------------------------------------------

/// A value from the block layer's description of a disk, or of the disk of a partition.
std::string queue_attribute(dev_t device, const char* name) {
  const std::string base =
      "/sys/dev/block/" + std::to_string(major(device)) + ":" + std::to_string(minor(device));
  for (const char* const folder : {"/queue/", "/../queue/"}) {
    std::ifstream file{base + folder + name};
    std::string value;
    if (file && std::getline(file, value)) return value;
  }
  return {};
}

std::uint64_t queue_number(dev_t device, const char* name) {
  const auto number = parse_number(queue_attribute(device, name));
  return number ? *number : 0;
}

bool is_memory_backed(int fd) {
  struct statfs stat {};
  if (fstatfs(fd, &stat) != 0) return false;
  return stat.f_type == TMPFS_MAGIC || stat.f_type == RAMFS_MAGIC;
}

void probe_block_device(FileState& state, const struct statx& stat) {
  const dev_t device = makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
  BackendInfo& info = state.info;
  ioctl(state.fd.get(), BLKGETSIZE64, &info.size);
  int logical = 512;
  unsigned physical = 4096;
  ioctl(state.fd.get(), BLKSSZGET, &logical);
  ioctl(state.fd.get(), BLKPBSZGET, &physical);
  state.block_size = static_cast<std::uint32_t>(logical);
  info.physical_block = physical;
  info.rotational = queue_number(device, "rotational") != 0;
  const std::uint64_t granularity = queue_number(device, "discard_granularity");
  info.can_discard = granularity != 0 && queue_number(device, "discard_max_bytes") != 0;
  info.discard_granularity = static_cast<std::uint32_t>(granularity);
  // Without help from the device the kernel writes the zeroes itself, which is not fast.
  info.can_fast_zero = queue_number(device, "write_zeroes_max_bytes") != 0;
}

void probe_file(FileState& state, const struct statx& stat) {
  BackendInfo& info = state.info;
  info.size = stat.stx_size;
  info.physical_block = std::bit_floor(std::clamp(stat.stx_blksize, 512U, 32768U));
  const dev_t device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
  info.rotational = queue_number(device, "rotational") != 0;
  state.memory_backed = is_memory_backed(state.fd.get());
  // A hole punched behind the end changes nothing, and tells whether it can be done.
  if (!info.read_only) {
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    const auto behind = static_cast<off_t>((info.size / 4096 + 2) * 4096);
    state.punch_hole = fallocate(state.fd.get(), mode, behind, 4096) == 0;
  }
  info.can_discard = info.can_fast_zero = state.punch_hole;
  info.discard_granularity = info.can_discard ? info.physical_block : 0;
  info.can_extents = lseek(state.fd.get(), 0, SEEK_HOLE) >= 0;
}

/// Finds out the alignment for direct I/O. 0 or an errno.
int probe_direct(FileState& state) {
  std::uint32_t alignment = 4096;
  struct statx stat {};
  if (state.block_device) {
    alignment = state.block_size;
  } else if (statx(state.direct.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &stat) == 0 &&
             (stat.stx_mask & STATX_DIOALIGN) != 0) {
    if (stat.stx_dio_offset_align == 0) return EINVAL;
    alignment = std::max(stat.stx_dio_offset_align, stat.stx_dio_mem_align);
  }
  state.direct_alignment = std::max(alignment, 512U);
  state.info.logical_block = state.direct_alignment;
  return 0;
}

/// Keeps writers apart, and readers from writers. 0 or an errno.
///
/// An open file description holds the lock, and running requests keep the description open. So when
/// another process gets the lock after our death, none of our writes is still to come. With direct
/// I/O there are two descriptions, so the second one locks a byte that no file has.
int lock(const FileState& state) {
  // Block devices that are written to are held with O_EXCL, which file systems and volume managers
  // respect too.
  if (state.block_device) return 0;
  const bool shared = state.info.read_only;
  const int first = state.direct ? state.direct.get() : state.fd.get();
  // A file system without locks can be used all the same.
  if (flock(first, (shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return EBUSY;
  }
  struct flock byte {};
  byte.l_type = shared ? F_RDLCK : F_WRLCK;
  byte.l_whence = SEEK_SET;
  byte.l_start = std::numeric_limits<off_t>::max() - 1;
  byte.l_len = 1;
  const bool taken = fcntl(state.fd.get(), F_OFD_SETLK, &byte) != 0 && errno == EAGAIN;
  return taken ? EBUSY : 0;
}

/// Opens for writing if asked and possible, for reading otherwise.
int open_first(const std::string& path, const BackendOptions& options, bool& read_only) {
  const auto open_with = [&](int flags) {
    flags |= O_CLOEXEC | O_NOCTTY | O_NONBLOCK;  // not to hang on a FIFO
    if (options.direct) flags |= O_DIRECT;
    return open_plain(path, flags);
  };
  if (!read_only) {
    // Without O_CREAT, O_EXCL only affects block devices: it keeps them from being mounted.
    const int fd = open_with(O_RDWR | (options.lock ? O_EXCL : 0));
    const bool forbidden = fd == -EACCES || fd == -EPERM || fd == -EROFS;
    if (!forbidden || !options.read_only_fallback) return fd;
  }
  read_only = true;
  return open_with(O_RDONLY);
}

/// Opens one for each queue in advance, so that no request fails for lack of it. 0 or an errno.
int open_flush_descriptors(FileState& state, std::size_t queues) {
  for (std::size_t n = state.info.read_only ? queues : 0; n < queues; ++n) {
    rtrs::OwnedFd fd{reopen(state.fd.get(), O_RDONLY)};
    if (!fd) return -fd.get();
    give_back(state, std::move(fd));
  }
  return 0;
}

constexpr char kNoDirect[] =
    "its file system has no direct I/O (O_DIRECT); leave out the option for it";

/// 0 or an errno.
int open_descriptors(FileState& state, const std::string& path, const BackendOptions& options) {
  rtrs::OwnedFd first{open_first(path, options, state.info.read_only)};
  if (!first) return -first.get();
  fcntl(first.get(), F_SETFL, fcntl(first.get(), F_GETFL) & ~O_NONBLOCK);
  if (options.direct) {
    state.direct = std::move(first);
    // For unaligned requests.
    first = rtrs::OwnedFd{reopen(state.direct.get(), state.info.read_only ? O_RDONLY : O_RDWR)};
    if (!first) return -first.get();
  }
  state.fd = std::move(first);
  return 0;
}

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_file(const std::string& path,
                                                          const BackendOptions& options) {
  const auto fail = [&](int error, const std::string& advice) {
    return bad_specification(error, path.empty() ? "''" : path, advice);
  };
  if (path.empty()) return fail(EINVAL, "the path is missing; name a file or block device");
  auto state = std::make_unique<FileState>();
  BackendInfo& info = state->info;
  info.read_only = options.read_only;
  const int error = open_descriptors(*state, path, options);
  if (error == EINVAL && options.direct) return fail(error, kNoDirect);
  if (error != 0) return fail(error, advice_for(error, path, !info.read_only));
  state->path = path;
  state->log = options.log;
  state->on_loss = options.on_loss;
  state->use_uring = options.use_uring;

  struct statx stat {};
  if (statx(state->fd.get(), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &stat) != 0) {
    return fail(errno, std::strerror(errno));
  }
  state->block_device = S_ISBLK(stat.stx_mode);
  if (S_ISDIR(stat.stx_mode)) return fail(EISDIR, advice_for(EISDIR, path, false));
  if (!state->block_device && !S_ISREG(stat.stx_mode)) {
    return fail(EINVAL, "it is neither a regular file nor a block device; name one of these");
  }
  if (options.lock && lock(*state) != 0) {
    return fail(EBUSY, info.read_only
                           ? "it is in use by another process (or another export; see fuser and "
                             "lslocks) that writes to it; stop that first"
                           : "it is in use by another process (or another export; see fuser and "
                             "lslocks); stop that first, or export it read-only if that only "
                             "reads");
  }
  info.can_write_zeroes = true;
  info.can_fua = true;
  info.can_cache = !options.direct;
  const std::string identity = identity_of(stat);
  info.uuid = uuid_of(identity);
  if (state->log) state->log(rtrs::LogLevel::debug, path + ": known as: " + identity);
  state->block_device ? probe_block_device(*state, stat) : probe_file(*state, stat);
  if (info.size == 0 && state->block_device) return fail(ENXIO, advice_for(ENXIO, path, false));
  if (options.direct && probe_direct(*state) != 0) return fail(EINVAL, kNoDirect);
  set_size(*state, info.size);
  if (const int missing = open_flush_descriptors(*state, options.queues); missing != 0) {
    return fail(missing, advice_for(missing, path, false));
  }
  if (info.size == 0 && state->log) {
    state->log(rtrs::LogLevel::warning, path + ": it is empty, and so is what clients see of it");
  }
  return std::make_unique<FileBackend>(std::move(state));
}

}  // namespace rnbd
