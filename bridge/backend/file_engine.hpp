// SPDX-License-Identifier: BSD-3-Clause
// Requests of the file backend that the kernel cannot answer at once, and the two ways
// to ask: io_uring, and threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rtrs {
class Reactor;
}

namespace rnbd {

/// One asynchronous system call. It is part of a request, and the engine owns it between start()
/// and done().
struct FileOperation {
  enum class Kind : std::uint8_t {
    read,
    write,
    sync,      ///< fdatasync
    allocate,  ///< fallocate with mode `flags`
    advise,    ///< posix_fadvise with advice `flags`
    call,      ///< call(): may block, and has no asynchronous form
  };

  FileOperation* next = nullptr;  ///< for the owner of the operation
  /// Called on the reactor. `result` is bytes or 0, or a negative errno.
  void (*done)(FileOperation& operation, std::int64_t result) = nullptr;
  union {
    std::byte* memory = nullptr;                     ///< read, write
    std::int64_t (*call)(FileOperation& operation);  ///< result as above; on another thread
  };
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  int fd = -1;
  int flags = 0;
  Kind kind = Kind::read;
};

/// First in, first out; allocates nothing.
class FileOperationList {
 public:
  bool empty() const { return head_ == nullptr; }
  void push(FileOperation& operation) {
    operation.next = nullptr;
    (tail_ != nullptr ? tail_->next : head_) = &operation;
    tail_ = &operation;
  }
  FileOperation& pop() {
    FileOperation& first = *head_;
    head_ = first.next;
    if (head_ == nullptr) tail_ = nullptr;
    return first;
  }
  FileOperationList take() {
    FileOperationList all = *this;
    *this = {};
    return all;
  }

 private:
  FileOperation* head_ = nullptr;
  FileOperation* tail_ = nullptr;
};

/// Performs FileOperations for one reactor.
///
/// Threads: the reactor's.
class FileEngine {
 public:
  virtual ~FileEngine() = default;  ///< only when no operation is running
  /// Never blocks, never fails; done() may be called before it returns.
  virtual void start(FileOperation& operation) = 0;
  /// Starts it on a thread at once. False: none is idle, but for a few that are left to Kind::call;
  /// nothing was started.
  virtual bool start_on_idle_thread(FileOperation& operation) = 0;
};

/// io_uring, or null where the kernel has none, forbids it, or is too old for these operations.
std::unique_ptr<FileEngine> make_uring_engine(rtrs::Reactor& reactor);

/// A thread pool that the whole process shares. The engine of io_uring uses it for Kind::call and
/// start_on_idle_thread().
std::unique_ptr<FileEngine> make_thread_engine(rtrs::Reactor& reactor);

}  // namespace rnbd
