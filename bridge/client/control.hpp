// SPDX-License-Identifier: BSD-3-Clause
// One message and its answer, for all messages that are not block I/O.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "bridge/client/device_handle.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/core/client/lane.hpp"
#include "rdma/wire/messages.hpp"

namespace rnbd {

/// Sends an RNBD message and waits for its answer, or for an errno if the message has no answer.
///
/// Errors:  the server's answer; the bytes of an answer are not judged here.
/// Threads: as rtrs::Operation.
class ControlOperation final : public rtrs::Operation {
 public:
  /// A question. On success `answer` is filled; it must outlive the operation.
  template <class T>
  ControlOperation(const T& message, rtrs::MutableBytes answer)
      : ControlOperation(rtrs::wire::bytes_of(message), answer, /*is_read=*/true) {}
  /// A command, whose answer is only an errno.
  template <class T>
  explicit ControlOperation(const T& message)
      : ControlOperation(rtrs::wire::bytes_of(message), {}, /*is_read=*/false) {}
  /// The same for an open device. The message gets the id of the device at the time when it is
  /// sent. `device` must outlive the operation.
  template <class T>
  ControlOperation(const DeviceHandle& device, const T& message, rtrs::MutableBytes answer)
      : ControlOperation(message, answer) {
    follow<T>(device);
  }
  template <class T>
  ControlOperation(const DeviceHandle& device, const T& message) : ControlOperation(message) {
    follow<T>(device);
  }

  /// A command with data, which must outlive the operation.
  struct Data {
    explicit Data(rtrs::ConstBytes data) : bytes{data} {}
    rtrs::ConstBytes bytes;
  };
  template <class T>
  ControlOperation(const DeviceHandle& device, const T& message, Data data)
      : ControlOperation(device, message) {
    request_.write_data = data.bytes;
  }

  void start(rtrs::ClientLane& lane) override;
  void cancel(rtrs::ClientLane& lane) override;

 private:
  ControlOperation(rtrs::ConstBytes message, rtrs::MutableBytes answer, bool is_read);
  template <class T>
  void follow(const DeviceHandle& device) {
    static_assert(offsetof(T, device_id) == kIdOffset);
    device_id_ = &device.id;
    request_.scope = &device.unresolved;
    request_.renew = &ControlOperation::on_renew;
  }
  void take_device_id();
  static void on_renew(rtrs::Request& request);
  static void on_done(rtrs::ClientLane& lane, rtrs::Request& request);

  /// Of the device id, in every message that has one.
  static constexpr std::size_t kIdOffset = 4;

  std::array<std::byte, rtrs::wire::kMaxUserMessage> message_;
  const std::atomic<std::uint32_t>* device_id_ = nullptr;
  rtrs::Request request_;
};

/// Closes a device by its name, even if it is not open. It is for servers that close by id only.
/// Such a server answers the OPEN of an open device with the id that it has.
///
/// Errors:  as ControlOperation; none when the server refuses the OPEN.
/// Threads: as rtrs::Operation.
/// Source:  docs/protocol.md, OPEN.
class CloseByName final : public rtrs::Operation {
 public:
  /// `handle` gets the id, and new ids after renewals of the session. It must outlive the
  /// operation.
  CloseByName(const std::string& device, wire::AccessMode access, DeviceHandle& handle);
  void start(rtrs::ClientLane& lane) override;
  void cancel(rtrs::ClientLane& lane) override { lane.cancel(request_); }

 private:
  void ask(rtrs::ClientLane& lane, rtrs::ConstBytes message, rtrs::MutableBytes answer);
  void on_opened(rtrs::ClientLane& lane, int error);
  static void on_renew(rtrs::Request& request);
  static void on_done(rtrs::ClientLane& lane, rtrs::Request& request);

  DeviceHandle& handle_;
  const wire::Open open_;
  wire::Close close_;
  std::array<std::byte, sizeof(wire::OpenResponse)> answer_{};
  rtrs::Request request_;
};

}  // namespace rnbd
