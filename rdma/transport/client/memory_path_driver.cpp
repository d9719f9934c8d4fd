// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/memory_path_driver.hpp"

#include <pthread.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

#include "rdma/transport/system_failure.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
constexpr auto kInterruptSlice = std::chrono::milliseconds{250};

}  // namespace

MemoryPathDriver::MemoryPathDriver(ClientPathOptions path, ConnectOptions connect, Duration timeout)
    : uuid_{path.path_uuid},
      connect_{std::move(connect)},
      session_name_{path.session_name},
      timeout_{timeout},
      work_{io_.get_executor()},
      core_{std::move(path)} {}

MemoryPathDriver::~MemoryPathDriver() {
  if (!thread_.joinable()) return;
  asio::post(io_, [this] {
    lost_on_io({ESHUTDOWN, "the memory path was closed"});
    io_.stop();
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
  asio::post(io_, [this] { start_on_io(); });
  while (!io_.stopped()) {
    // Nothing may escape: this thread lives in somebody else's program.
    try {
      io_.run();
    } catch (const std::exception& exception) {
      lost_on_io(failure_of(exception));
    }
  }
}

void MemoryPathDriver::start_on_io() {
  auto lookup = std::make_shared<HostLookup>(connect_.address.host);
  driver_ = std::make_shared<PathDriver>(io_, core_, connect_, std::move(lookup), session_name_,
                                         timeout_, *this, PathLife{});
  driver_->start();
}

void MemoryPathDriver::on_ready(PathLife) {
  for (std::uint16_t cid = 1; cid < core_.connection_count(); ++cid) {
    lanes_.push_back(
        std::make_unique<MemoryLane>(driver_->take(cid), [this](const std::string& why) {
          // Before the caller who finds that out goes on.
          const Failure failure{EIO, name_of(connect_.address) + ": " + why};
          note_failure(failure);
          asio::post(io_, [this, failure] { lost_on_io(failure); });
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

}  // namespace rtrs
