// SPDX-License-Identifier: BSD-3-Clause
// A fake transport and a fake backend around the RNBD session logic.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "bridge/protocol/messages.hpp"
#include "bridge/server/block_session.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/queue_table.hpp"
#include "rdma/core/server/request.hpp"
#include "tests/unit/server/fake_services.hpp"

namespace rnbd::test {

/// Another server tells the size of the storage.
struct FakeDistantSize final : DistantSize {
  explicit FakeDistantSize(std::function<bool(std::uint64_t)> take_it)
      : taken{std::move(take_it)} {}
  bool may_be_asked() const override { return may; }
  std::optional<std::uint64_t> ask() override {
    ++questions;
    return there;
  }
  bool take(std::uint64_t size) override { return taken(size); }

  std::function<bool(std::uint64_t)> taken;
  bool may = true;
  unsigned questions = 0;
  std::optional<std::uint64_t> there = {};  ///< none: no answer
};

/// Storage in a vector that writes down what it was asked for and may hold its answers back.
class FakeBackend final : public Backend {
 public:
  struct Record {
    BackendOperation operation;
    std::uint64_t offset;
    std::uint64_t length;
    bool fua;
    bool no_unmap;
    bool fast;
  };

  explicit FakeBackend(std::uint64_t size) {
    become(size);
    info_.size = size;
    info_.can_discard = info_.can_write_zeroes = info_.can_fast_zero = true;
    info_.can_extents = info_.can_cache = info_.can_fua = true;
  }
  ~FakeBackend() override {
    if (on_close) on_close();
  }
  const BackendInfo& info() const override { return info_; }
  std::uint64_t present_size() override { return present_size_; }
  void become(std::uint64_t size) {
    bytes.resize((size + 511) / 512 * 512);
    present_size_ = size;
  }
  std::optional<std::uint64_t> shrunk_to() const override { return shrunk_to_; }
  DistantSize* distant_size() override { return distant_.get(); }
  /// From now on only a question tells the size.
  FakeDistantSize& be_distant() {
    distant_ = std::make_unique<FakeDistantSize>([this](std::uint64_t size) {
      if (size <= present_size_) return false;
      become(size);
      return true;
    });
    return *distant_;
  }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor*) override;

  /// Answers the oldest request that is held.
  void answer(int error = 0);
  void run(BackendRequest& request);

  BackendInfo info_;
  std::uint64_t present_size_ = 0;
  std::optional<std::uint64_t> shrunk_to_ = {};
  std::unique_ptr<FakeDistantSize> distant_;
  std::vector<std::byte> bytes;
  std::vector<Record> records;
  std::vector<BackendExtent> extents;
  std::deque<BackendRequest*> held;
  bool hold = false;
  int fail_next = 0;  ///< errno for the next operation
  unsigned queues = 0;
  bool fail_queue = false;
  std::function<void()> on_close;
};

/// One request of a client and what became of it.
struct Call {
  rtrs::ServerRequest request;  // first: finish() finds the call by it
  std::vector<std::byte> message;
  std::vector<std::byte> data;
  int error = -1;
  unsigned finished = 0;
  std::function<void()> on_finish;

  template <class T>
  T answer() const {
    return rtrs::wire::copy_of<T>(data);
  }
};

/// One server with a session, driven without a transport.
class World {
 public:
  struct Options {
    std::uint64_t size = 1 << 20;
    bool extensions = true;
    std::function<void(BackendInfo&)> adjust = {};  ///< of the export "disk"
  };

  World();
  explicit World(const Options& options);

  /// Adds "name" with a fake backend of its own.
  FakeBackend& add(const std::string& name, std::uint64_t size, bool read_only = false,
                   const std::function<void(BackendInfo&)>& adjust = {});
  /// Only this user may open the export from now on.
  void give_to(const std::string& user, const std::string& name);
  std::unique_ptr<BlockSession> make_session(const std::string& name, bool extensions = true,
                                             DeviceIds ids = DeviceIds::never_twice);

  /// A call that is not finished stays alive with the world.
  template <class T>
  Call& send(BlockSession& target, const T& message, bool is_read, std::vector<std::byte> data) {
    const auto bytes = rtrs::wire::bytes_of(message);
    return send_bytes(target, {bytes.begin(), bytes.end()}, is_read, std::move(data));
  }
  Call& send_bytes(BlockSession& target, std::vector<std::byte> message, bool is_read,
                   std::vector<std::byte> data);

  Call& open(BlockSession& target, const std::string& name,
             wire::AccessMode mode = wire::AccessMode::read_write);
  Call& close(BlockSession& target, std::uint32_t id);
  /// `room` is the size of the RTRS request's data; a write's data is zero.
  Call& io(BlockSession& target, std::uint32_t rw, std::uint64_t sector, std::uint32_t length,
           bool is_read, std::size_t room, std::uint32_t id = 0);

  FakeBackend& disk() { return *disk_; }
  BlockSession& session() { return *session_; }
  void end_session() { session_.reset(); }

  std::vector<std::string> log;
  FakeServices services;
  FakeBackend* next_backend = nullptr;
  ExportCatalogue catalogue;
  QueueTable queues;

 private:
  std::deque<std::unique_ptr<Call>> calls_;
  FakeBackend* disk_ = nullptr;
  std::unique_ptr<BlockSession> session_;
};

/// Sixteen readable characters of garbage, to find what nobody filled.
inline constexpr std::byte kGarbage{0xA5};

std::vector<std::byte> room(std::size_t size);

}  // namespace rnbd::test
