// SPDX-License-Identifier: BSD-3-Clause
// One message and its answer: all that is not block I/O.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "bridge/client/device_handle.hpp"
#include "bridge/protocol/messages.hpp"
#include "rdma/core/client_lane.hpp"

namespace rnbd {

/// Sends a message of the RNBD protocol and waits for its answer, or for its errno when it has
/// none.
///
/// Errors:  the server's answer; the bytes of an answer are not judged here.
/// Threads: as rtrs::Operation.
class ControlOperation final : public rtrs::Operation {
 public:
  /// A question: `answer` is filled on success and must outlive the operation.
  template <class T>
  ControlOperation(const T& message, rtrs::MutableBytes answer)
      : ControlOperation(rtrs::wire::bytes_of(message), answer, /*is_read=*/true) {}
  /// A command, which is answered by an errno only.
  template <class T>
  explicit ControlOperation(const T& message)
      : ControlOperation(rtrs::wire::bytes_of(message), {}, /*is_read=*/false) {}
  /// The same about an open device: the message gets the id that the device has when it is sent.
  /// `device` must outlive the operation.
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

  static constexpr std::size_t kIdOffset = 4;  ///< of the device id in every message that has one

  std::array<std::byte, rtrs::kMaxUserMessage> message_;
  const std::atomic<std::uint32_t>* device_id_ = nullptr;
  rtrs::Request request_;
};

/// Closes a device by its name, whether it is open or not: servers answer the OPEN of a device that
/// the session has open already with the id that it has. For servers that close by id only.
///
/// Errors:  as ControlOperation; none when the server does not let it be opened.
/// Threads: as rtrs::Operation.
/// Source:  docs/protocol.md, OPEN.
class CloseByName final : public rtrs::Operation {
 public:
  /// `handle` gets the id, which follows the session's renewals, and must outlive the operation.
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
