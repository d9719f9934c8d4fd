// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/memory_path_driver.hpp"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "rdma/transport/system_failure.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
constexpr auto kInterruptSlice = std::chrono::milliseconds{250};
/// Between two looks for an interruption.
constexpr int kLookMilliseconds = 250;

}  // namespace

MemoryPathDriver::MemoryPathDriver(ClientPathOptions path, ConnectOptions connect, Duration timeout)
    : uuid_{path.path_uuid},
      connect_{std::move(connect)},
      session_name_{path.session_name},
      timeout_{timeout},
      core_{std::move(path)} {}

MemoryPathDriver::~MemoryPathDriver() {
  if (!thread_.joinable()) return;
  asio::post(reactor_.io(), [this] {
    lost_on_io({ESHUTDOWN, "the memory path was closed"});
    reactor_.stop();
  });
  thread_.join();
}

std::string MemoryPathDriver::failure() const {
  const std::lock_guard lock{mutex_};
  return failure_.text;
}

// ---- Life --------------------------------------------------------------------------------------

tl::expected<void, Failure> MemoryPathDriver::establish(const Interrupt& interrupt) {
  thread_ = std::thread{[this] { run_thread(); }};
  std::unique_lock lock{mutex_};
  while (!changed_.wait_for(lock, kInterruptSlice, [this] { return settled_; })) {
    lock.unlock();
    if (interrupt()) return tl::unexpected(Failure{EINTR, "interrupted while connecting"});
    lock.lock();
  }
  if (!alive_) return tl::unexpected(failure_);
  return {};
}

void MemoryPathDriver::run_thread() {
  pthread_setname_np(pthread_self(), "rtrs-memory");
  asio::post(reactor_.io(), [this] { start_on_io(); });
  while (!reactor_.io().stopped()) {
    // Nothing may escape: this thread lives in somebody else's program.
    try {
      reactor_.run();
    } catch (const std::exception& exception) {
      lost_on_io(failure_of(exception));
    }
  }
}

void MemoryPathDriver::start_on_io() {
  auto lookup = std::make_shared<HostLookup>(connect_.address.host);
  driver_ = std::make_shared<PathDriver>(reactor_, core_, connect_, std::move(lookup),
                                         session_name_, timeout_, *this, PathLife{});
  driver_->start();
}

void MemoryPathDriver::on_ready(PathLife) {
  for (std::uint16_t cid = 1; cid < core_.connection_count(); ++cid) {
    lanes_.push_back(
        std::make_unique<MemoryLane>(driver_->take(cid), [this](const std::string& why) {
          // Before the caller who finds that out goes on.
          const Failure failure{EIO, name_of(connect_.address) + ": " + why};
          note_failure(failure);
          asio::post(reactor_.io(), [this, failure] { lost_on_io(failure); });
        }));
  }
  const std::lock_guard lock{mutex_};
  alive_ = settled_ = true;
  changed_.notify_all();
}

void MemoryPathDriver::note_failure(const Failure& failure) {
  const std::lock_guard lock{mutex_};
  alive_ = false;
  settled_ = true;
  if (failure_.error == 0) failure_ = failure;
  changed_.notify_all();
}

void MemoryPathDriver::lost_on_io(const Failure& failure) {
  note_failure(failure);
  for (auto& lane : lanes_) lane->close(failure.text);
  if (driver_) driver_->close();
}

bool MemoryPathDriver::on_heartbeat(PathLife) {
  bool heard = false;
  for (auto& lane : lanes_) heard |= lane->heard();
  return heard;
}

// ---- Transfers ---------------------------------------------------------------------------------

MemoryLane* MemoryPathDriver::next_lane() {
  if (!alive_) return nullptr;
  return lanes_[next_.fetch_add(1, std::memory_order_relaxed) % lanes_.size()].get();
}

int MemoryPathDriver::read(RemoteMemory from, MutableBytes into, const Interrupt& interrupt) {
  MemoryLane* const lane = next_lane();
  return lane == nullptr ? EIO : lane->read(from, into, interrupt);
}

int MemoryPathDriver::write(RemoteMemory to, ConstBytes data, const Interrupt& interrupt) {
  MemoryLane* const lane = next_lane();
  return lane == nullptr ? EIO : lane->write(to, data, interrupt);
}

int MemoryPathDriver::settle(RemoteMemory readable, const Interrupt& interrupt) {
  if (!alive_) return EIO;
  for (auto& lane : lanes_) {
    if (const int error = lane->settle(readable, interrupt); error != 0) return error;
  }
  return 0;
}

int MemoryPathDriver::write_settled(RemoteMemory to, ConstBytes data, const Interrupt& interrupt) {
  MemoryLane* const lane = next_lane();
  return lane == nullptr ? EIO : lane->write_settled(to, data, interrupt);
}

tl::expected<void, Failure> MemoryPathDriver::register_memory(MutableBytes memory) {
  if (!alive_) return tl::unexpected(Failure{EIO, failure()});
  for (auto& lane : lanes_) {
    auto known = lane->register_memory(memory);
    if (known) continue;
    forget_memory(memory);
    return known;
  }
  return {};
}

void MemoryPathDriver::forget_memory(MutableBytes memory) {
  for (auto& lane : lanes_) lane->forget_memory(memory);
}

// ---- One connection ----------------------------------------------------------------------------

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
      // The caller's accesses under way can be taken back only together with the connection.
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
    while (transfer.posted < transfer.size() && end_ - first_ < kMemoryWindows) {
      post_piece(transfer, std::min<std::size_t>(kMemoryWindow, transfer.size() - transfer.posted));
    }
  }
  if (end_ != before) connection_->flush();
}

void MemoryLane::post_piece(Transfer& transfer, std::size_t size) {
  const auto window = static_cast<std::uint32_t>(end_ % kMemoryWindows);
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
  Piece& piece = pieces_[first_ % kMemoryWindows];
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
