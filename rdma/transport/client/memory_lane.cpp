// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/memory_lane.hpp"

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
  Transfer read{.where = from, .into = into, .from = {}, .is_read = true};
  return run({&read, 1}, interrupt);
}

int MemoryLane::write(RemoteMemory to, ConstBytes data, const Interrupt& interrupt) {
  Transfer write{.where = to, .into = {}, .from = data, .is_read = false};
  return run({&write, 1}, interrupt);
}

int MemoryLane::settle(RemoteMemory readable, const Interrupt& interrupt) {
  std::array<std::byte, 8> unused{};
  {
    const std::lock_guard lock{mutex_};
    if (!broken_ && settled_ == written_) return 0;
  }
  return read(readable, unused, interrupt);
}

int MemoryLane::write_settled(RemoteMemory to, ConstBytes data, const Interrupt& interrupt) {
  std::array<std::byte, 8> unused{};
  const auto behind = MutableBytes{unused}.first(std::min(unused.size(), data.size()));
  std::array both{Transfer{.where = to, .into = {}, .from = data, .is_read = false},
                  Transfer{.where = to, .into = behind, .from = {}, .is_read = true}};
  return run(both, interrupt);
}

/// One transfer behind the other. Of several callers one waits for what comes, also for the others.
int MemoryLane::run(std::span<Transfer> transfers, const Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  for (;;) {
    if (broken_) return EIO;
    post(transfers);
    if (std::ranges::all_of(transfers, &Transfer::done)) return 0;
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

void MemoryLane::post(std::span<Transfer> transfers) {
  const std::size_t before = end_;
  for (Transfer& transfer : transfers) {
    while (transfer.posted < transfer.size() && end_ - first_ < kWindows) {
      post_piece(transfer, std::min<std::size_t>(kPiece, transfer.size() - transfer.posted));
    }
  }
  if (end_ != before) connection_->flush();
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
  // Operations end in the order of posting: these are all the writes that lie before a read.
  if (piece.transfer->is_read) {
    settled_ = written_;
  } else {
    ++written_;
  }
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
