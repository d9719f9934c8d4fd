// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/cm.hpp"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <infiniband/ib.h>

#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string_view>

namespace rtrs::verbs {
namespace {

/// Service ids of the port space RDMA_PS_IB. Source: rdma_cma.h, enum rdma_port_space.
constexpr std::uint64_t kServiceIdPrefix = 0x0000'0000'013F'0000;
constexpr std::string_view kGidPrefix = "gid:";
constexpr std::uint16_t kDefaultPartition = 0xFFFF;

}  // namespace

std::string describe(int error) { return std::strerror(std::abs(error)); }

tl::expected<Channel, Failure> open_channel() {
  rdma_event_channel* raw = rdma_create_event_channel();
  if (raw == nullptr) {
    const int error = errno != 0 ? errno : ENODEV;
    return tl::unexpected(
        Failure{error, std::string{"cannot use RDMA on this host: "} + describe(error) +
                           " (is there an RDMA device, see 'rdma link', and is the module rdma_ucm "
                           "loaded?)"});
  }
  Channel channel{raw, rdma_destroy_event_channel};
  fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
  return channel;
}

tl::expected<CmId, Failure> CmId::create(rdma_port_space space) {
  auto channel = open_channel();
  if (!channel) return tl::unexpected(channel.error());
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(channel->get(), &id, nullptr, space) != 0) {
    return tl::unexpected(
        Failure{errno, std::string{"cannot create an RDMA connection: "} + describe(errno)});
  }
  return CmId{std::move(*channel), id};
}

void CmId::reset() {
  if (id_ != nullptr) rdma_destroy_id(std::exchange(id_, nullptr));
  channel_.reset();
}

CmAddress cm_address(const boost::asio::ip::address& address, std::uint16_t port) {
  const boost::asio::ip::tcp::endpoint endpoint{address, port};
  CmAddress result;
  std::memcpy(&result.storage, endpoint.data(), endpoint.size());
  return result;
}

CmAddress gid_address(const boost::asio::ip::address_v6& gid, std::uint16_t port) {
  CmAddress result;
  result.space = RDMA_PS_IB;
  sockaddr_ib address{};
  address.sib_family = AF_IB;
  address.sib_pkey = htons(kDefaultPartition);
  static_assert(sizeof(address.sib_addr) == 16);
  const auto bytes = gid.to_bytes();
  std::memcpy(&address.sib_addr, bytes.data(), bytes.size());
  address.sib_sid = htobe64(kServiceIdPrefix | port);
  address.sib_sid_mask = ~std::uint64_t{0};
  static_assert(sizeof(address) <= sizeof(result.storage));
  std::memcpy(&result.storage, &address, sizeof(address));
  return result;
}

std::optional<CmAddress> parse_address(const std::string& text, std::uint16_t port) {
  boost::system::error_code error;
  if (text.starts_with(kGidPrefix)) {
    const auto gid = boost::asio::ip::make_address_v6(text.substr(kGidPrefix.size()), error);
    if (error) return std::nullopt;
    return gid_address(gid, port);
  }
  const auto address = boost::asio::ip::make_address(text, error);
  if (error) return std::nullopt;
  return cm_address(address, port);
}

CmAddress local_address(rdma_cm_id* id) {
  CmAddress local;
  const sockaddr* address = rdma_get_local_addr(id);
  switch (address->sa_family) {
    case AF_INET:
      std::memcpy(&local.storage, address, sizeof(sockaddr_in));
      reinterpret_cast<sockaddr_in*>(&local.storage)->sin_port = 0;
      break;
    case AF_INET6:
      std::memcpy(&local.storage, address, sizeof(sockaddr_in6));
      reinterpret_cast<sockaddr_in6*>(&local.storage)->sin6_port = 0;
      break;
    default:
      std::memcpy(&local.storage, address, sizeof(sockaddr_ib));
      // Without its prefix the kernel would not know the port space.
      reinterpret_cast<sockaddr_ib*>(&local.storage)->sib_sid = htobe64(kServiceIdPrefix);
      break;
  }
  return local;
}

std::string text_of(const sockaddr* address) {
  if (address->sa_family == AF_IB) {
    sockaddr_ib ib;
    std::memcpy(&ib, address, sizeof(ib));
    boost::asio::ip::address_v6::bytes_type bytes;
    std::memcpy(bytes.data(), &ib.sib_addr, bytes.size());
    return "gid:" + boost::asio::ip::address_v6{bytes}.to_string() + ':' +
           std::to_string(be64toh(ib.sib_sid) & 0xFFFF);
  }
  boost::asio::ip::tcp::endpoint endpoint;
  const std::size_t size =
      address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  std::memcpy(endpoint.data(), address, size);
  std::ostringstream text;
  text << endpoint;
  return text.str();
}

namespace {

/// RoCE makes GIDs from addresses of IP, InfiniBand and iWARP do not.
bool is_roce(const rdma_cm_id* id) {
  ibv_port_attr port{};
  return id->verbs != nullptr && id->verbs->device->transport_type == IBV_TRANSPORT_IB &&
         ibv_query_port(id->verbs, id->port_num, &port) == 0 &&
         port.link_layer == IBV_LINK_LAYER_ETHERNET;
}

in6_addr as_ipv6(const sockaddr* address) {
  in6_addr bytes{};
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, address, sizeof(v6));
    return v6.sin6_addr;
  }
  sockaddr_in v4;
  std::memcpy(&v4, address, sizeof(v4));
  bytes.s6_addr[10] = bytes.s6_addr[11] = 0xFF;
  std::memcpy(&bytes.s6_addr[12], &v4.sin_addr, sizeof(v4.sin_addr));
  return bytes;
}

}  // namespace

std::string text_of_client(rdma_cm_id* id) {
  const sockaddr* const said = rdma_get_peer_addr(id);
  const bool by_ip = said->sa_family == AF_INET || said->sa_family == AF_INET6;
  if (!by_ip || !is_roce(id) || id->route.num_paths < 1) return text_of(said);
  const union ibv_gid& gid = id->route.path_rec->dgid;
  const in6_addr address = as_ipv6(said);
  if (std::memcmp(&address, gid.raw, sizeof(gid.raw)) == 0) return text_of(said);
  namespace ip = boost::asio::ip;
  ip::address_v6::bytes_type bytes;
  std::memcpy(bytes.data(), gid.raw, bytes.size());
  const ip::address_v6 real{bytes};
  std::ostringstream text;
  text << ip::tcp::endpoint{real.is_v4_mapped()
                                ? ip::address{ip::make_address_v4(ip::v4_mapped, real)}
                                : ip::address{real},
                            ntohs(rdma_get_dst_port(id))};
  return text.str();
}

}  // namespace rtrs::verbs
