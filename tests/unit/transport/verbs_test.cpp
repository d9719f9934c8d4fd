// SPDX-License-Identifier: BSD-3-Clause
// Parts of the verbs transport that need no RDMA device.
#include <doctest/doctest.h>
#include <endian.h>
#include <infiniband/ib.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "rdma/transport/verbs/cm.hpp"
#include "rdma/transport/verbs/domain.hpp"
#include "rdma/transport/verbs/queue_plan.hpp"

namespace rtrs::verbs::verbs_test {
namespace {

/// The first `size` bytes of an address.
std::vector<int> first_bytes(const CmAddress& address, std::size_t size) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&address.storage);
  return {bytes, bytes + size};
}

TEST_CASE("the address of a GID, byte by byte") {
  const auto address = parse_address("gid:fe80::2:c903:1:1", 1234);
  REQUIRE(address);
  CHECK(address->space == RDMA_PS_IB);
  CHECK(address->storage.ss_family == 27);  // AF_IB of every Linux
  // As struct sockaddr_ib of rdma_cm(7): all but the family are big-endian.
  const std::vector<int> wanted{
      27,   0,    0xFF, 0xFF, 0,    0,    0,    0,     // family, P_Key, flow info
      0xFE, 0x80, 0,    0,    0,    0,    0,    0,     // GID: subnet
      0,    2,    0xC9, 3,    0,    1,    0,    1,     // GID: port
      0,    0,    0,    0,    1,    0x3F, 0x04, 0xD2,  // service id: prefix, port 1234
      0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,  // mask of the service id
      0,    0,    0,    0,    0,    0,    0,    0};    // scope
  static_assert(sizeof(sockaddr_ib) == 48);
  if (htobe16(1) == 1) return;  // the family is in the order of the host
  CHECK(first_bytes(*address, sizeof(sockaddr_ib)) == wanted);
}

TEST_CASE("addresses are read as they are written") {
  for (const std::string text :
       {"gid:fe80::2:c903:1:1", "gid:::", "gid:ffff:ffff:ffff:ffff:1:2:3:4", "10.0.0.1"}) {
    for (const std::uint16_t port : {1, 1234, 65535}) {
      CAPTURE(text);
      auto address = parse_address(text, port);
      REQUIRE(address);
      CHECK(text_of(address->get()) == text + ':' + std::to_string(port));
    }
  }
  auto address = parse_address("fe80::1", 1234);
  REQUIRE(address);
  CHECK(address->space == RDMA_PS_TCP);
  CHECK(address->storage.ss_family == AF_INET6);
  CHECK(text_of(address->get()) == "[fe80::1]:1234");
  for (const std::string text :
       {"gid:", "gid:10.0.0.1", "gid:fe80::1::2", "gid:fe80", "gid", "host"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_address(text, 1234));
  }
}

TEST_CASE("where something is bound is told without its port, in the same port space") {
  rdma_cm_id id{};
  for (const std::string text : {"gid:fe80::1", "10.0.0.1", "fe80::1"}) {
    CAPTURE(text);
    const auto bound = parse_address(text, 1234);
    auto free = parse_address(text, 0);
    REQUIRE(bound);
    REQUIRE(free);
    std::memcpy(&id.route.addr.src_storage, &bound->storage, sizeof(bound->storage));
    const std::size_t size = sizeof(sockaddr_ib);
    CHECK(first_bytes(local_address(&id), size) == first_bytes(*free, size));
  }
}

TEST_CASE("a queue pair that cannot be had: what was asked for, what there is, and what to do") {
  ibv_qp_cap asked{};
  asked.max_send_wr = 4098;
  asked.max_recv_wr = 2049;
  const Failure failure = refused_queue_pair("rxe0", asked, 1024, ENOMEM, kProgramWords);
  CHECK(failure.error == ENOMEM);
  for (const char* part : {"rxe0", "4098 sends", "2049 receives", "1024", "--queue-depth"}) {
    CAPTURE(part);
    CHECK(failure.text.find(part) != std::string::npos);
  }
  CHECK(failure.text.find("ulimit") == std::string::npos);
}

TEST_CASE("what is refused for want of memory names the limit of locked memory") {
  ibv_qp_cap asked{};
  asked.max_send_wr = asked.max_recv_wr = 16;
  const auto names_it = [](const Failure& failure) {
    return failure.text.find("ulimit -l") != std::string::npos;
  };
  CHECK(names_it(refused_queue_pair("rxe0", asked, 1024, ENOMEM, kProgramWords)));
  CHECK_FALSE(names_it(refused_queue_pair("rxe0", asked, 1024, EINVAL, kProgramWords)));
  CHECK(names_it(refused("a completion queue", ENOMEM)));
  CHECK_FALSE(names_it(refused("a completion queue", EINVAL)));
}

/// A device that takes so much.
ibv_device_attr device_of(int requests, int completions) {
  ibv_device_attr device{};
  device.max_qp_wr = requests;
  device.max_cqe = completions;
  return device;
}

TEST_CASE("a completion queue has room for all that can be under way") {
  const auto all =
      plan_queues("rxe0", device_of(1 << 20, 1 << 20), {768, 256, 512}, 320, kProgramWords);
  REQUIRE(all);
  CHECK(all->queues.max_send_wr == 768 + 512 + 128);
  CHECK(all->queues.max_recv_wr == 257);
  CHECK(all->queues.max_inline_data == 320);
  CHECK(all->completions == 768 + 512 + 128 + 257);
  const auto few_requests =
      plan_queues("rxe0", device_of(300, 1 << 20), {768, 256, 0}, 0, kProgramWords);
  REQUIRE(few_requests);
  CHECK(few_requests->queues.max_send_wr == 300);
  CHECK(few_requests->completions == 300 + 257);
}

TEST_CASE("where completions are few, sends wait; where they are too few, there is no connection") {
  const QueueSizes sizes{768, 256, 10};
  const auto plan = plan_queues("rxe0", device_of(1 << 20, 600), sizes, 0, kProgramWords);
  REQUIRE(plan);
  CHECK(plan->queues.max_recv_wr == 257);
  CHECK(plan->queues.max_send_wr == 600 - 257);
  CHECK(plan->completions == 600);
  CHECK(plan_queues("rxe0", device_of(1 << 20, 257 + 11), sizes, 0, kProgramWords).has_value());
  for (const int entries : {257 + 10, 257, 256, 1, 0}) {
    CAPTURE(entries);
    const auto refused = plan_queues("rxe0", device_of(1 << 20, entries), sizes, 0, kProgramWords);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().error == ENOMEM);
    for (const std::string& part :
         {std::string{"rxe0"}, std::string{"268 entries"}, "up to " + std::to_string(entries),
          std::string{"--queue-depth"}}) {
      CAPTURE(part);
      CHECK(refused.error().text.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("receives that a device does not take are told as they were asked for") {
  const auto refused =
      plan_queues("rxe0", device_of(100, 1 << 20), {768, 256, 0}, 0, kProgramWords);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text.find("256 receives") != std::string::npos);
  CHECK(refused.error().text.find("up to 100 of each") != std::string::npos);
}

}  // namespace
}  // namespace rtrs::verbs::verbs_test
