// SPDX-License-Identifier: BSD-3-Clause
// Where an export's blocks are. A new kind of storage implements Backend and BackendQueue, and adds
// one line to the factory; docs/backends.md shows how.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/failure.hpp"
#include "rdma/log.hpp"

namespace rtrs {
class Reactor;
}

namespace rnbd {

using rtrs::Failure;

/// Properties and abilities of a backend; constant while it is open.
struct BackendInfo {
  std::uint64_t size = 0;  ///< bytes; any number; at the time of opening
  std::uint32_t logical_block =
      512;  ///< bytes; requests are multiples of it, except at the very end
  std::uint32_t physical_block = 4096;  ///< bytes; power of two
  bool read_only = false;
  bool rotational = false;
  bool can_discard = false;
  bool can_write_zeroes = false;
  bool can_fast_zero = false;  ///< `fast` zeroing succeeds at least sometimes
  bool can_extents = false;    ///< tells holes from data
  bool can_cache = false;      ///< read-ahead does something
  /// False: the storage cannot say when writes are durable, and refuses a flush.
  bool can_flush = true;
  /// One flush makes the writes of all queues durable, and a read sees the writes of all queues.
  bool queues_share = true;
  bool can_fua = false;                   ///< by itself; else by a flush, if it has that
  bool volatile_cache = true;             ///< needs flush, or FUA where it has only that
  std::uint32_t discard_granularity = 0;  ///< bytes
  std::array<std::uint8_t, 16> uuid{};    ///< the same as long as it is the same storage
  bool outlives_server = true;            ///< another server process would find the same contents
};

enum class BackendOperation : std::uint8_t {
  read,
  write,
  flush,
  discard,
  write_zeroes,
  extents,
  cache
};

/// A run of blocks of one kind.
struct BackendExtent {
  std::uint64_t length = 0;  ///< bytes
  bool hole = false;         ///< not allocated
  bool zero = false;         ///< reads as zeroes
};

/// Tells whether the name of the storage still leads to it.
enum class Whereabouts : std::uint8_t {
  named,
  unnamed,  ///< a file that was deleted or replaced; it works as before, until it is closed
  gone,     ///< a device that was taken away; no request works any more
};

/// One operation. The caller keeps the object and its memory until done() is called.
///
/// The range lies inside the backend when it is submitted, because RNBD's checks come first. If the
/// size is no multiple of 512, the range may end inside the padding of the last sector. Bytes past
/// the end read as zero and are not written.
struct BackendRequest {
  BackendOperation operation = BackendOperation::read;
  bool fua = false;       ///< durable before done (write, write_zeroes, discard)
  bool no_unmap = false;  ///< write_zeroes: keep the blocks allocated
  bool fast = false;      ///< write_zeroes: ENOTSUP (EOPNOTSUPP) rather than slow
  bool copy = false;      ///< of blocks that are elsewhere; only a queue around the storage's asks
  /// Set before done(): a queue around the storage's has refused it, so the storage has not failed.
  bool refused = false;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;   ///< bytes
  std::byte* data = nullptr;  ///< read: filled; write: read from
  std::vector<BackendExtent>* extents =
      nullptr;  ///< extents: appended; starts at offset, contiguous
  std::size_t max_extents = 0;
  /// Called once, on the queue's reactor, possibly before submit() returns. `error` is a positive
  /// errno, 0 = success.
  void (*done)(BackendRequest& request, int error) = nullptr;
  void* context = nullptr;

  // For the backend's use between submit() and done().
  alignas(16) std::byte scratch[96];
  BackendRequest* next = nullptr;
};

/// One reactor's access to a backend, so that requests need no locks.
///
/// Threads: the reactor it was opened for.
class BackendQueue {
 public:
  /// Only when no request is running, and not from inside a done().
  virtual ~BackendQueue() = default;
  /// Starts an operation. Never blocks.
  virtual void submit(BackendRequest& request) = 0;
  /// True when a new queue may do what this one cannot: the connection to another server was lost,
  /// and all requests fail, or the storage has grown beyond its reach.
  virtual bool broken() const { return false; }
};

/// A few short texts that are stored beside the blocks. Every server of the storage can read them.
///
/// Threads: one at a time. May block.
class BackendNotes {
 public:
  virtual ~BackendNotes() = default;
  /// "": there is none.
  ///
  /// Errors: the obstacle, for people.
  virtual tl::expected<std::string, std::string> load(const std::string& name) = 0;
  /// Durable when it returns.
  ///
  /// Errors: likewise.
  virtual tl::expected<void, std::string> save(const std::string& name,
                                               const std::string& text) = 0;
};

/// The size of storage that another server tells to new connections only.
///
/// Threads: any; ask() one at a time.
class DistantSize {
 public:
  virtual ~DistantSize() = default;
  /// False: the server gave no answer lately, and is not asked again so soon. Never blocks.
  virtual bool may_be_asked() const = 0;
  /// Blocks for 2 s at most, and longer while a name is looked up. None: no answer.
  ///
  /// Units: bytes.
  virtual std::optional<std::uint64_t> ask() = 0;
  /// Takes over a larger size, of which Backend::present_size() tells from then on. Call it while
  /// no client has the storage open: the queues do not reach the new part, and are broken().
  /// False: the size stays. Never blocks.
  virtual bool take(std::uint64_t size) = 0;
};

/// The abilities of one kind of storage that others do not have. Code that knows the kind finds its
/// class by dynamic_cast.
class BackendExtension {
 public:
  virtual ~BackendExtension() = default;
};

/// Open storage, shared by all reactors.
///
/// Threads: any; open_queue() on the reactor's thread.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;
  /// Returns the current size. If the storage has grown, requests of every queue may use the new
  /// part from now on. The result never shrinks. Storage that ends inside a block does not grow
  /// either: clients were allowed to use the padding behind that end.
  ///
  /// Units:   bytes.
  /// Threads: any; never blocks.
  virtual std::uint64_t present_size() { return info().size; }
  /// Null: present_size() finds out by itself. The result lives as long as the backend.
  ///
  /// Threads: any.
  virtual DistantSize* distant_size() { return nullptr; }
  /// Returns the bytes that are left of storage which has shrunk beneath present_size(). None: all
  /// of it is there.
  ///
  /// Threads: any; never blocks.
  virtual std::optional<std::uint64_t> shrunk_to() const { return std::nullopt; }
  /// Threads: any; never blocks.
  virtual Whereabouts whereabouts() const { return Whereabouts::named; }
  /// A new number means that answered writes may have been lost before they were flushed, although
  /// this process and this machine live on. Always 0 if that cannot happen.
  ///
  /// Threads: any.
  virtual std::uint32_t life() const { return 0; }
  /// Null: the storage has no room for notes. The returned object keeps the storage open.
  ///
  /// Threads: any.
  virtual std::shared_ptr<BackendNotes> notes() { return nullptr; }
  /// Null: the storage does no more than this interface says.
  ///
  /// Threads: any.
  virtual BackendExtension* extension() { return nullptr; }
  /// `reactor` is null only in the simulator, which uses `memory:` and `null:`. The backend and the
  /// reactor outlive the queue. Returns null if the system lacks resources for it, such as
  /// descriptors.
  virtual std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) = 0;
};

/// How to open storage.
struct BackendOptions {
  bool read_only = false;
  bool read_only_fallback = false;  ///< open read-only where writing is not allowed
  bool direct = false;              ///< O_DIRECT, files and block devices
  bool use_uring = true;            ///< false: a thread pool instead of io_uring
  bool lock = true;                 ///< lock the storage against writers of other processes
  bool make_files = true;  ///< false: the storage is only inspected, so no journal is begun
  /// The most queues that are open at a time. Scarce resources are reserved when the storage is
  /// opened.
  std::size_t queues = 1;
  /// Called when a flush has failed, before any client learns of it: answered writes may be lost.
  /// It may block.
  /// Threads: any.
  std::function<void()> on_loss{};
  rtrs::Log log{};  ///< reports later events of the storage (a dead NBD server, a failed flush)
};

/// The path in a specification of a file or block device; none for other storage.
std::optional<std::string> path_of(const std::string& specification);

/// True for storage that several servers may have at a time, and that keeps their writers apart by
/// itself.
bool is_shared(const std::string& specification);

/// Opens the storage that a specification names: PATH (regular file or block device),
/// `memory:SIZE`, `nbd:URI`, `fault:OPTIONS:SPEC`, and others of docs/backends.md, which has their
/// options.
///
/// Open an export once and share it among its readers and writers: a file opened for writing is
/// locked against a second open, even by the same process.
///
/// Errors: a sentence with the specification and a cure; ENOENT, EACCES, EROFS, EBUSY (in use
///         elsewhere), EINVAL, ...
/// Threads: any but a reactor's, because it may block (disks, other servers).
tl::expected<std::unique_ptr<Backend>, Failure> open_backend(const std::string& specification,
                                                             const BackendOptions& options);

}  // namespace rnbd
