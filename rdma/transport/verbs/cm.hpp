// SPDX-License-Identifier: BSD-3-Clause
// The connection manager: ids, their events, addresses, and its errors in words.
#pragma once

#include <rdma/rdma_cma.h>

#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "rdma/failure.hpp"

namespace rtrs::verbs {

/// An errno in words; also the returns of some providers: negated, or one that only kernels know.
std::string describe(int error);

/// The channel of the events of one or more ids, read without blocking. It must outlive them.
using Channel = std::shared_ptr<rdma_event_channel>;

/// Errors: ENODEV when the host has no RDMA at all.
tl::expected<Channel, Failure> open_channel();

/// A connection (or listener) of the connection manager, on a channel of its own.
class CmId {
 public:
  CmId() = default;
  /// Takes over an id that belongs to `channel`.
  CmId(Channel channel, rdma_cm_id* id) : channel_{std::move(channel)}, id_{id} {}
  CmId(CmId&& other) noexcept
      : channel_{std::move(other.channel_)}, id_{std::exchange(other.id_, nullptr)} {}
  CmId& operator=(CmId&& other) noexcept {
    reset();
    channel_ = std::move(other.channel_);
    id_ = std::exchange(other.id_, nullptr);
    return *this;
  }
  ~CmId() { reset(); }

  /// A new id. Errors: ENODEV, ENOMEM.
  static tl::expected<CmId, Failure> create(rdma_port_space space);

  rdma_cm_id* get() const { return id_; }
  rdma_cm_id* operator->() const { return id_; }
  int descriptor() const { return channel_->fd; }
  rdma_event_channel* channel() const { return channel_.get(); }
  const Channel& shared_channel() const { return channel_; }
  void reset();

 private:
  Channel channel_;
  rdma_cm_id* id_ = nullptr;
};

/// An address in the form that the connection manager wants.
struct CmAddress {
  sockaddr_storage storage{};
  rdma_port_space space = RDMA_PS_TCP;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

CmAddress cm_address(const boost::asio::ip::address& address, std::uint16_t port);
/// The address of a port of an RDMA device, "fe80::5054:ff:fe12:3456" (written as gid:... by
/// users).
///
/// Source: rdma_cm(7), AF_IB; docs/protocol.md, addresses.
CmAddress gid_address(const boost::asio::ip::address_v6& gid, std::uint16_t port);

/// The address that a user wrote: numeric, or gid:... for the address of a port of an RDMA device.
///
/// Errors: nothing when it is neither.
std::optional<CmAddress> parse_address(const std::string& text, std::uint16_t port);

/// The address to which an id is bound, without its port, so that another one can be bound there.
CmAddress local_address(rdma_cm_id* id);

/// "10.0.0.1:1234".
std::string text_of(const sockaddr* address);

/// The peer of a connect request. Its message has an address of IP that the client chose, so over
/// RoCE it is that of the GID to which packets go, whatever the message says.
std::string text_of_client(rdma_cm_id* id);

/// Remedy for an address without an RDMA device.
inline constexpr const char* kNoDeviceHint =
    " (no RDMA device serves this address: 'rdma link' shows them; software RoCE on an Ethernet "
    "card is made with 'rdma link add rxe0 type rxe netdev eth0')";

}  // namespace rtrs::verbs
