// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/memory_lane.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace rtrs {
namespace {

/// Between two looks for an interruption.
constexpr int kLookMilliseconds = 250;

}  // namespace

MemoryLane::MemoryLane(std::unique_ptr<Connection> connection,
                       std::function<void(std::string)> on_broken)
    : connection_{std::move(connection)}, on_broken_{std::move(on_broken)} {}

int MemoryLane::read(RemoteMemory from, MutableBytes into, const Interrupt& interrupt) {
  return run({.where = from, .into = into, .from = {}, .is_read = true}, interrupt);
}

int MemoryLane::write(RemoteMemory to, ConstBytes data, const Interrupt& interrupt) {
  return run({.where = to, .into = {}, .from = data, .is_read = false}, interrupt);
}

int MemoryLane::settle(RemoteMemory readable, const Interrupt& interrupt) {
  std::array<std::byte, 8> unused{};
  std::uint64_t written = 0;
  {
    const std::lock_guard lock{mutex_};
    if (!broken_ && settled_ == written_) return 0;
    written = written_;
  }
  const int error = read(readable, unused, interrupt);
  const std::lock_guard lock{mutex_};
  if (error == 0) settled_ = std::max(settled_, written);
  return error;
}

/// Of several callers one waits for what comes, also for the others.
int MemoryLane::run(Transfer transfer, const Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  for (;;) {
    if (broken_) return EIO;
    post(transfer);
    if (transfer.done()) return 0;
    if (interrupt()) {
      // Its accesses under way can be taken back only together with the connection.
      break_off("a caller gave up what was under way");
      return EINTR;
    }
    if (driven_) {
      changed_.wait_for(lock, std::chrono::milliseconds{kLookMilliseconds});
    } else {
      drive(lock);
    }
  }
}

void MemoryLane::post(Transfer& transfer) {
  bool any = false;
  while (transfer.posted < transfer.size() && end_ - first_ < kWindows) {
    post_piece(transfer, std::min<std::size_t>(kPiece, transfer.size() - transfer.posted));
    any = true;
  }
  if (any) connection_->flush();
}

void MemoryLane::post_piece(Transfer& transfer, std::size_t size) {
  const auto window = static_cast<std::uint32_t>(end_ % kWindows);
  Piece& piece = pieces_[window];
  const RemoteMemory where{transfer.where.address + transfer.posted, transfer.where.key};
  piece = {.ticket = 0, .transfer = &transfer, .into = {}, .landing = {}};
  if (transfer.is_read) {
    piece.into = transfer.into.subspan(transfer.posted, size);
    piece.landing = connection_->landing(window, piece.into);
    piece.ticket = connection_->read(where, piece.landing);
  } else {
    const ConstBytes data = transfer.from.subspan(transfer.posted, size);
    piece.ticket = connection_->write_confirmed(where, connection_->stage(window, data));
  }
  ++end_;
  ++transfer.under_way;
  transfer.posted += size;
}

Complaint MemoryLane::on_done(Ticket ticket) {
  if (first_ == end_) return "an operation ended that was not under way";
  Piece& piece = pieces_[first_ % kWindows];
  if (piece.ticket != ticket) return "an operation ended before an earlier one";
  ++first_;
  if (piece.landing.data() != piece.into.data()) {
    std::memcpy(piece.into.data(), piece.landing.data(), piece.into.size());
  }
  if (!piece.transfer->is_read) ++written_;
  --piece.transfer->under_way;
  return nullptr;
}

/// Waits a while for arrivals, and takes them. The lock is given away meanwhile, so that others can
/// post.
bool MemoryLane::drive(std::unique_lock<std::mutex>& lock) {
  driven_ = true;
  pollfd descriptor{connection_->descriptor(), POLLIN, 0};
  if (connection_->wants_to_write()) descriptor.events |= POLLOUT;
  lock.unlock();
  const bool ready = ::poll(&descriptor, 1, kLookMilliseconds) > 0;
  lock.lock();
  driven_ = false;
  if (!broken_) take_arrivals();
  changed_.notify_all();
  return ready;
}

void MemoryLane::take_arrivals() {
  using Status = Connection::Status;
  const std::size_t before = first_;
  Status status = Status::more;
  while (status == Status::more) status = connection_->progress(*this);
  if (first_ != before) heard_ = true;
  if (status == Status::drained) return;
  break_off(status == Status::closed ? "the server closed the connection" : connection_->failure());
}

void MemoryLane::break_off(std::string why) {
  if (std::exchange(broken_, true)) return;
  connection_->close();
  changed_.notify_all();
  if (on_broken_) std::exchange(on_broken_, nullptr)(std::move(why));
}

void MemoryLane::close(const std::string& why) {
  const std::lock_guard lock{mutex_};
  on_broken_ = nullptr;
  break_off(why);
}

tl::expected<void, Failure> MemoryLane::register_memory(MutableBytes memory) {
  const std::lock_guard lock{mutex_};
  if (broken_) return tl::unexpected(Failure{EIO, "the memory path has ended"});
  return connection_->register_memory(memory);
}

void MemoryLane::forget_memory(MutableBytes memory) {
  const std::lock_guard lock{mutex_};
  if (!broken_) connection_->forget_memory(memory);
}

}  // namespace rtrs
