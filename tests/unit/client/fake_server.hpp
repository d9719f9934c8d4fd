// SPDX-License-Identifier: BSD-3-Clause
// A block server in memory at the other end of one lane: it keeps every request until the test lets
// it answer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "rdma/core/client/lane.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/immediate.hpp"

namespace rnbd::test {

using rtrs::ConstBytes;
using rtrs::MutableBytes;

/// One request as it arrived.
struct Arrival {
  std::uint32_t slot = 0;
  bool is_read = false;
  std::vector<std::byte> message;
  std::vector<std::byte> data;

  wire::MessageType type() const { return *wire::decode_type(message); }
  bool is_io() const { return type() == wire::MessageType::io; }
  wire::Io io() const { return *wire::decode_io(message); }
};

struct FakeOptions {
  std::uint32_t max_io_size = 64 * 1024;
  std::uint16_t slots = 64;
  std::uint32_t features = rtrs::wire::kFeatureUserMessages | rtrs::wire::kFeatureExactlyOnce;
  std::size_t disk_size = 1 << 20;
  std::uint64_t volatile_epoch = 0;
};

class FakeServer final : public rtrs::QueuePair {
 public:
  explicit FakeServer(const FakeOptions& chosen = {})
      : options{chosen},
        lane{0, chosen.slots},
        disk((options.disk_size + 511) / 512 * 512),
        chunks_(options.slots),
        windows_(options.slots) {
    open_response.header = wire::header_of(wire::MessageType::open_response);
    open_response.sectors = disk.size() / 512;
    open_response.max_write_zeroes_sectors = 0x7FFFFF;
    open_response.max_discard_sectors = 0x7FFFFF;
    open_response.discard_granularity = 512;
    open_response.physical_block_size = 4096;
    open_response.logical_block_size = 512;
    open_response.cache_policy = wire::kCacheFua | wire::kCacheWriteback;
    device_info.header = wire::header_of(wire::MessageType::device_info_response);
    device_info.size = options.disk_size;
    device_info.flags = wire::kDeviceMultiWriter | wire::kDeviceExtents | wire::kDeviceCache |
                        wire::kDeviceFastZero;
    attach(lane);
  }

  /// Executes and answers the arrival at `index` of the queue.
  void answer(std::size_t index = 0) {
    Arrival arrival = std::move(arrivals[index]);
    arrivals.erase(arrivals.begin() + static_cast<std::ptrdiff_t>(index));
    std::vector<std::byte> reply(windows_[arrival.slot].size());
    const int error = fail ? fail(arrival) : 0;
    deliver(arrival, error != 0 ? error : execute(arrival, reply), reply);
  }
  void answer_all() {
    while (!arrivals.empty()) answer();
  }

  std::uint64_t count(wire::MessageType type) const {
    auto found = seen.find(type);
    return found == seen.end() ? 0 : found->second;
  }

  /// Requests come from this lane from now on.
  void attach(rtrs::ClientLane& sender) {
    sender_ = &sender;
    sender.attach(0, {.queue_pair = this,
                      .chunks = chunks_,
                      .queue_depth = options.slots,
                      .chunk_size = options.max_io_size + 4096,
                      .max_io_size = options.max_io_size});
  }
  /// Restarted: it knows nothing of what was open and asked.
  void restart(std::uint32_t first_id) {
    lane.detach(0);
    open.clear();
    arrivals.clear();
    next_id = first_id;
    if (after_restart) after_restart();
  }

  const FakeOptions options;
  rtrs::ClientLane lane;
  std::vector<std::byte> disk;
  std::deque<Arrival> arrivals;  ///< not answered yet
  bool has_all_ids = false;      ///< takes requests for devices that are not open
  std::vector<wire::Io> executed;
  std::uint32_t next_id = 7;                       ///< of the next device that is opened
  std::map<std::string, std::uint32_t> open;       ///< names and ids
  std::map<std::uint32_t, std::string> opened_by;  ///< names by the numbers of OPENs
  std::vector<std::string> written;                ///< whom the writes reached, by name
  std::map<wire::MessageType, std::uint64_t> seen;
  std::function<void()> after_restart;      ///< brings back what it kept, say
  std::function<int(const Arrival&)> fail;  ///< an errno for an arrival, 0 = execute it
  /// Answers messages that it does not know itself.
  std::function<int(const Arrival&, std::vector<std::byte>& reply)> other;
  wire::OpenResponse open_response;
  wire::DeviceInfoResponse device_info;
  std::vector<wire::ExportName> exports;
  std::vector<wire::Extent> extents;
  rtrs::Complaint complaint = nullptr;  ///< what the lane said of an answer

  // ---- QueuePair
  rtrs::Ticket write_with_immediate(rtrs::RemoteMemory, ConstBytes data, ConstBytes header,
                                    std::uint32_t immediate) override {
    const auto request = rtrs::wire::decode_request(immediate, options.slots);
    const std::size_t size = message_size(request, data.size());
    const auto message = header.first(size);
    const std::uint16_t type = rtrs::wire::copy_of<rtrs::wire::le16>(header.subspan(size));
    Arrival arrival;
    arrival.slot = request.buffer_id;
    arrival.is_read = rtrs::wire::MessageType{type} == rtrs::wire::MessageType::read;
    arrival.message.assign(message.begin(), message.end());
    arrival.data.assign(data.begin(), data.end());
    ++seen[arrival.type()];
    arrivals.push_back(std::move(arrival));
    return ++ticket_;
  }
  rtrs::Ticket write(rtrs::RemoteMemory, ConstBytes) override { return ++ticket_; }
  rtrs::Ticket send(ConstBytes) override { return ++ticket_; }
  rtrs::Ticket send_with_immediate(ConstBytes, std::uint32_t) override { return ++ticket_; }
  rtrs::Ticket send_with_invalidate(std::uint32_t) override { return ++ticket_; }
  void post_receives(unsigned, std::uint32_t) override {}
  rtrs::RemoteMemory expose(std::uint32_t window, MutableBytes memory) override {
    windows_[window] = memory;
    return {window, 0};
  }
  void withdraw(std::uint32_t window) override { windows_[window] = {}; }
  void flush() override {}
  rtrs::Ticket sent() const override { return ticket_; }
  void disown_unsent() override {}

 private:
  /// A write's message is behind its data, a read's behind room for the answer.
  std::size_t message_size(rtrs::wire::RequestImmediate request, std::size_t data) const {
    return request.header_offset - (data != 0 ? data : windows_[request.buffer_id].size());
  }

  void deliver(const Arrival& arrival, int error, const std::vector<std::byte>& reply) {
    MutableBytes window = windows_[arrival.slot];
    std::uint32_t bytes = 0;
    if (error == 0 && !window.empty()) {
      std::memcpy(window.data(), reply.data(), window.size());
      bytes = static_cast<std::uint32_t>(window.size());
    }
    const auto response = rtrs::wire::encode(rtrs::wire::ResponseImmediate{arrival.slot, error});
    complaint = sender_->connection(0).on_write_with_immediate(response, bytes);
  }

  template <class T>
  static void put(std::vector<std::byte>& reply, const T& message) {
    put_bytes(reply, rtrs::wire::bytes_of(message));
  }
  static void put_bytes(std::vector<std::byte>& reply, ConstBytes bytes) {
    std::copy_n(bytes.begin(), std::min(reply.size(), bytes.size()), reply.begin());
  }

  int execute(const Arrival& arrival, std::vector<std::byte>& reply) {
    switch (arrival.type()) {
      case wire::MessageType::session_info: {
        wire::SessionInfo info;
        info.header = wire::header_of(wire::MessageType::session_info_response);
        put(reply, info);
        return 0;
      }
      case wire::MessageType::open: {
        const std::string name = wire::decode_open(arrival.message)->device_name;
        const auto [at, fresh] = open.emplace(name, next_id);
        if (fresh) opened_by[wire::order_of(arrival.message, sizeof(wire::Open)).number] = name;
        if (fresh) ++next_id;
        open_response.device_id = at->second;
        put(reply, open_response);
        return 0;
      }
      case wire::MessageType::close:
        std::erase_if(open, [&](const auto& entry) { return entry.second == device_of(arrival); });
        if (device_of(arrival) == wire::kUnknownDevice) {
          open.erase(opened_by[wire::order_of(arrival.message, sizeof(wire::Close)).number]);
        }
        return 0;
      case wire::MessageType::claim:
        device_info.sight = 0;
        [[fallthrough]];
      case wire::MessageType::device_info:
        if (name_of(device_of(arrival)).empty()) return ENOTCONN;
        device_info.device_id = device_of(arrival);
        put(reply, device_info);
        return 0;
      case wire::MessageType::list_exports: {
        auto question =
            *wire::decode<wire::ListExports>(arrival.message, wire::MessageType::list_exports);
        put_bytes(reply, wire::encode_export_page(exports, question.first, reply.size()));
        return 0;
      }
      case wire::MessageType::block_status:
        put_bytes(reply, wire::encode_block_status_response(extents));
        return 0;
      case wire::MessageType::io:
        return execute_io(arrival, reply);
      default:
        return other ? other(arrival, reply) : 0;
    }
  }

  /// Every message about a device has its id in the same place.
  static std::uint32_t device_of(const Arrival& arrival) {
    return rtrs::wire::copy_of<wire::Close>(arrival.message).device_id;
  }
  std::string name_of(std::uint32_t id) const {
    for (const auto& [name, its_id] : open) {
      if (its_id == id) return name;
    }
    return "";
  }

  int execute_io(const Arrival& arrival, std::vector<std::byte>& reply) {
    const wire::Io io = arrival.io();
    if (io.device_id == kNoDevice && !has_all_ids) return ENOTCONN;
    executed.push_back(io);
    const std::uint64_t offset = io.sector * 512;
    if (io.operation() == wire::IoOperation::flush) return 0;
    if (offset + io.length > disk.size()) return EIO;
    switch (io.operation()) {
      case wire::IoOperation::read:
        if (reply.size() != io.length) return EINVAL;
        std::memcpy(reply.data(), disk.data() + offset, io.length);
        return 0;
      case wire::IoOperation::write:
        if (arrival.data.size() != io.length) return EINVAL;
        written.push_back(name_of(io.device_id));
        std::memcpy(disk.data() + offset, arrival.data.data(), io.length);
        return 0;
      default:
        std::memset(disk.data() + offset, 0, io.length);
        return 0;
    }
  }

  rtrs::ClientLane* sender_ = nullptr;
  std::vector<rtrs::wire::ChunkAddress> chunks_;
  std::vector<MutableBytes> windows_;
  rtrs::Ticket ticket_ = 0;
};

}  // namespace rnbd::test
