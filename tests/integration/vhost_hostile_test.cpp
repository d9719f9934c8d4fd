// SPDX-License-Identifier: BSD-3-Clause
// Drivers and front-ends that do harm, or are merely strange, at a device of rnbd-bridge. The
// environment names its socket, RNBD_VHOST; the disk has 64 MiB. After each of them the next one is
// served.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>

#include "tests/bench/vhost_driver.hpp"

namespace vhost_hostile_test {

using namespace vhostload;

namespace {

constexpr std::uint32_t kIn = VIRTIO_BLK_T_IN;
constexpr std::uint32_t kOut = VIRTIO_BLK_T_OUT;
constexpr std::uint64_t kSectors = 64U * 2048;

std::string socket_path() { return std::getenv("RNBD_VHOST"); }
Options options() { return {.path = socket_path()}; }

/// A driver whose requests are carried out as they should be.
void serves() {
  Driver driver{options()};
  std::memset(driver.data(), 0x5A, 4096);
  driver.describe(0, kOut, 80, driver.data(), 4096, false);
  REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
  std::memset(driver.data(), 0, 4096);
  driver.describe(0, kIn, 80, driver.data(), 4096, true);
  REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
  CHECK(driver.data()[4095] == std::byte{0x5A});
}

/// The ring stops and says so; others of the client go on, and so does the next client.
void breaks(const std::function<void(Driver&)>& harm) {
  {
    Options two = options();
    two.queues = 2;
    Driver driver{two};
    harm(driver);
    Ring& ring = driver.ring();
    ring.offer(0);
    ring.publish(driver.event_index());
    ring.do_kick();
    pollfd polled{ring.error.get(), POLLIN, 0};
    CHECK(::poll(&polled, 1, 10'000) == 1);
    driver.describe(0, kIn, 0, driver.data(), 512, true, 1);
    CHECK(driver.carry_out(0, 1) == VIRTIO_BLK_S_OK);
  }
  serves();
}

/// The device hangs up, and serves the next client.
void is_left(const std::function<void(Wire&)>& harm) {
  {
    Wire wire{socket_path()};
    harm(wire);
    CHECK(wire.hears_the_end());
  }
  serves();
}

std::string state(std::uint32_t index, std::uint32_t number) { return packed(index, number); }

}  // namespace

TEST_CASE("requests end with the status that virtio says") {
  Driver driver{options()};
  CHECK(driver.config().capacity == kSectors);
  const auto status = [&](std::uint32_t type, std::uint64_t sector, std::uint32_t length,
                          bool device_writes) {
    driver.describe(0, type, sector, driver.data(), length, device_writes);
    return driver.carry_out();
  };
  CHECK(status(kIn, 0, 512, true) == VIRTIO_BLK_S_OK);
  CHECK(status(kIn, kSectors - 1, 512, true) == VIRTIO_BLK_S_OK);
  CHECK(status(kIn, kSectors, 512, true) == VIRTIO_BLK_S_IOERR);
  CHECK(status(kIn, kSectors - 1, 1024, true) == VIRTIO_BLK_S_IOERR);
  CHECK(status(kOut, UINT64_MAX, 512, false) == VIRTIO_BLK_S_IOERR);
  CHECK(status(kOut, UINT64_MAX / 512 + 1, 512, false) == VIRTIO_BLK_S_IOERR);
  CHECK(status(kIn, 0, 511, true) == VIRTIO_BLK_S_IOERR);
  CHECK(status(kOut, 0, 513, false) == VIRTIO_BLK_S_IOERR);
  CHECK(status(77, 0, 512, true) == VIRTIO_BLK_S_UNSUPP);
  CHECK(status(VIRTIO_BLK_T_SECURE_ERASE, 0, 16, false) == VIRTIO_BLK_S_UNSUPP);
  CHECK(status(VIRTIO_BLK_T_FLUSH, 0, 0, false) == VIRTIO_BLK_S_OK);
  CHECK(status(VIRTIO_BLK_T_GET_ID, 0, 20, true) == VIRTIO_BLK_S_OK);
  CHECK(std::string{reinterpret_cast<const char*>(driver.data())} == "disk0");
  CHECK(status(VIRTIO_BLK_T_GET_ID, 0, 8, true) == VIRTIO_BLK_S_IOERR);
  const auto range = [&](std::uint64_t sector, std::uint32_t sectors, std::uint32_t flags) {
    const virtio_blk_discard_write_zeroes one{
        .sector = sector, .num_sectors = sectors, .flags = flags};
    std::memcpy(driver.data(), &one, sizeof(one));
  };
  range(2048, 64, 0);
  CHECK(status(VIRTIO_BLK_T_DISCARD, 0, 16, false) == VIRTIO_BLK_S_OK);
  CHECK(status(VIRTIO_BLK_T_DISCARD, 0, 32, false) == VIRTIO_BLK_S_IOERR);
  CHECK(status(VIRTIO_BLK_T_WRITE_ZEROES, 0, 16, false) == VIRTIO_BLK_S_OK);
  range(2048, 64, 1);
  CHECK(status(VIRTIO_BLK_T_DISCARD, 0, 16, false) == VIRTIO_BLK_S_UNSUPP);
  CHECK(status(VIRTIO_BLK_T_WRITE_ZEROES, 0, 16, false) == VIRTIO_BLK_S_OK);
  range(kSectors - 1, 2, 0);
  CHECK(status(VIRTIO_BLK_T_WRITE_ZEROES, 0, 16, false) == VIRTIO_BLK_S_IOERR);
  CHECK(status(kIn, 2048, 4096, true) == VIRTIO_BLK_S_OK);
  CHECK(driver.data()[0] == std::byte{0});
}

TEST_CASE("as many bytes are reported as were written") {
  Driver driver{options()};
  const auto reported = [&](std::uint32_t type, std::uint64_t sector, std::uint32_t length) {
    driver.describe(0, type, sector, driver.data(), length, true);
    driver.ring().offer(0);
    if (driver.ring().publish(driver.event_index())) driver.ring().do_kick();
    REQUIRE(driver.ring().wait(driver.event_index()));
    return driver.ring().take_used().len;
  };
  CHECK(reported(kIn, 0, 512) == 513);
  CHECK(reported(VIRTIO_BLK_T_GET_ID, 0, 20) == 21);
  CHECK(reported(VIRTIO_BLK_T_GET_ID, 0, 40) == 20);
  CHECK(reported(kIn, kSectors, 512) == 0);
  CHECK(reported(VIRTIO_BLK_T_FLUSH, 0, 0) == 1);
}

TEST_CASE("drivers without events, files that block, and a data buffer in many pieces are served") {
  for (const bool sleeping : {false, true}) {
    for (const bool events : {false, true}) {
      Options some = options();
      some.sleeping_files = sleeping;
      some.event_index = events;
      Driver driver{some};
      for (unsigned i = 0; i < 50; ++i) {
        driver.describe(0, kIn, i, driver.data(), 512, true);
        REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
      }
    }
  }
  // A header in two pieces, the data in 32 of 128 bytes, the status with the last of them.
  Driver driver{options()};
  for (unsigned i = 0; i < 4096; ++i) driver.data()[i] = static_cast<std::byte>(i / 7);
  driver.describe(0, kOut, 8, driver.data(), 4096, false);
  REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
  vring_desc* const table = driver.ring().parts.desc;
  const virtio_blk_outhdr header{.type = kIn, .ioprio = 0, .sector = 8};
  std::memcpy(driver.head(0), &header, sizeof(header));
  std::byte* const into = driver.data() + 8192;
  table[0] = {driver.guest(driver.head(0)), 5, VRING_DESC_F_NEXT, 1};
  table[1] = {driver.guest(driver.head(0)) + 5, 11, VRING_DESC_F_NEXT, 2};
  for (std::uint16_t i = 0; i < 32; ++i) {
    const std::uint32_t length = i == 31 ? 129 : 128;
    const auto flags =
        static_cast<std::uint16_t>(VRING_DESC_F_WRITE | (i == 31 ? 0 : VRING_DESC_F_NEXT));
    table[2 + i] = {driver.guest(into) + 128U * i, length, flags,
                    static_cast<std::uint16_t>(3 + i)};
  }
  into[4096] = std::byte{0xFF};
  driver.carry_out();
  CHECK(into[4096] == std::byte{0});
  CHECK(std::memcmp(into, driver.data(), 4096) == 0);
}

TEST_CASE("a table of indirect descriptors with 126 segments carries a large request") {
  Options large = options();
  large.data = 4U << 20;
  Driver driver{large};
  std::byte* const table_at = driver.data();
  std::byte* const data = driver.data() + 8192;
  std::vector<vring_desc> table(128);
  const virtio_blk_outhdr header{.type = kIn, .ioprio = 0, .sector = 0};
  std::memcpy(driver.head(0), &header, sizeof(header));
  driver.head(0)[16] = std::byte{0xFF};
  table[0] = {driver.guest(driver.head(0)), 16, VRING_DESC_F_NEXT, 1};
  for (std::uint16_t i = 1; i <= 126; ++i) {
    table[i] = {driver.guest(data) + 8192U * i, 8192, VRING_DESC_F_NEXT | VRING_DESC_F_WRITE,
                static_cast<std::uint16_t>(i + 1)};
  }
  table[127] = {driver.guest(driver.head(0) + 16), 1, VRING_DESC_F_WRITE, 0};
  std::memcpy(table_at, table.data(), sizeof(vring_desc) * table.size());
  driver.ring().parts.desc[0] = {driver.guest(table_at), 16 * 128, VRING_DESC_F_INDIRECT, 0};
  CHECK(driver.carry_out() == VIRTIO_BLK_S_OK);
}

TEST_CASE("rings that break the rules stop, and nothing else does") {
  const auto desc = [](Driver& driver) { return driver.ring().parts.desc; };
  SUBCASE("a loop") {
    breaks([&](Driver& driver) {
      desc(driver)[0] = {Driver::kGuest, 16, VRING_DESC_F_NEXT, 1};
      desc(driver)[1] = {Driver::kGuest, 16, VRING_DESC_F_NEXT, 0};
    });
  }
  SUBCASE("a place outside the table") {
    breaks([&](Driver& driver) {
      desc(driver)[0] = {Driver::kGuest, 16, VRING_DESC_F_NEXT, 60000};
    });
  }
  SUBCASE("a header outside the memory") {
    breaks([&](Driver& driver) {
      driver.describe(0, kIn, 0, driver.data(), 512, true);
      desc(driver)[0].addr = UINT64_MAX - 8;
    });
  }
  SUBCASE("data outside the memory") {
    breaks([&](Driver& driver) {
      driver.describe(0, kIn, 0, driver.data(), 4096, true);
      desc(driver)[1].addr = Driver::kGuest + driver.size() - 4095;
    });
    breaks([&](Driver& driver) {
      driver.describe(0, kOut, 0, driver.data(), 4096, false);
      desc(driver)[1].addr = 0;
    });
  }
  SUBCASE("no place for the status") {
    breaks([&](Driver& driver) { desc(driver)[0] = {Driver::kGuest, 16, 0, 0}; });
  }
  SUBCASE("no header") {
    breaks([&](Driver& driver) { desc(driver)[0] = {Driver::kGuest, 1, VRING_DESC_F_WRITE, 0}; });
  }
  SUBCASE("an index that jumps") {
    breaks([&](Driver& driver) { driver.ring().next = 30000; });
  }
  SUBCASE("a huge table of indirect descriptors") {
    breaks([&](Driver& driver) {
      desc(driver)[0] = {Driver::kGuest, 0xFFFF'FFF0, VRING_DESC_F_INDIRECT, 0};
    });
  }
}

TEST_CASE("a request that is too long fails, and the ring goes on") {
  Driver driver{options()};
  driver.describe(0, kIn, 0, driver.data(), 0xFFFF'FE00, true);
  CHECK(driver.carry_out() == VIRTIO_BLK_S_IOERR);
  driver.describe(0, kIn, 0, driver.data(), 512, true);
  CHECK(driver.carry_out() == VIRTIO_BLK_S_OK);
}

/// The calls of this driver would wait for ever.
void block_calls(Driver& driver) {
  const int call = driver.ring().call.get();
  eventfd_t ignored = 0;
  ::eventfd_read(call, &ignored);  // the bridge has made it a file that does not block
  ::eventfd_write(call, UINT64_MAX - 1);
  ::fcntl(call, F_SETFL, ::fcntl(call, F_GETFL) & ~O_NONBLOCK);
  driver.describe(0, kIn, 0, driver.data(), 512, true);
  driver.ring().offer(0);
  driver.ring().publish(driver.event_index());
  driver.ring().do_kick();
}

TEST_CASE("a call whose counter is full, and blocks again, holds nothing up") {
  {
    Driver driver{options()};
    block_calls(driver);
    CHECK(driver.stop(driver.ring()) == 1);
  }
  serves();
}

TEST_CASE("a driver is called at the start, as ends may have been shown without a call before") {
  Driver driver{options()};
  const auto is_called = [&] {
    pollfd polled{driver.ring().call.get(), POLLIN, 0};
    eventfd_t ignored = 0;
    return ::poll(&polled, 1, 5'000) > 0 && ::eventfd_read(driver.ring().call.get(), &ignored) == 0;
  };
  CHECK(is_called());
  driver.wire().send(kSetVringCall, packed(std::uint64_t{0}), {driver.ring().call.get()});
  CHECK(is_called());
}

TEST_CASE("a ring that stops and starts goes on where it was") {
  Driver driver{options()};
  for (unsigned round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < 10; ++i) {
      driver.describe(0, kIn, i, driver.data(), 512, true);
      REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
    }
    const std::uint32_t base = driver.stop(driver.ring());
    CHECK(base == 10 * (round + 1));
    driver.start(driver.ring(), base);
  }
}

TEST_CASE("requests that are under way have ended when a ring has stopped") {
  Options large = options();
  large.data = 16U << 20;
  Driver driver{large};
  for (unsigned slot = 0; slot < 64; ++slot) {
    driver.describe(slot, kIn, 0, driver.data() + slot * (256U << 10), 256U << 10, true);
    driver.ring().offer(static_cast<std::uint16_t>(3 * slot));
  }
  driver.ring().publish(driver.event_index());
  driver.ring().do_kick();
  const std::uint32_t base = driver.stop(driver.ring());
  CHECK(__atomic_load_n(&driver.ring().parts.used->idx, __ATOMIC_ACQUIRE) == base);
  driver.start(driver.ring(), base);
  while (driver.ring().taken != 64) {
    REQUIRE(driver.ring().wait(driver.event_index()));
    while (driver.ring().has_used()) driver.ring().take_used();
  }
}

TEST_CASE("the memory may be mapped anew while a ring runs") {
  Driver driver{options()};
  for (unsigned i = 0; i < 50; ++i) {
    driver.describe(0, kIn, i, driver.data(), 512, true);
    REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
    driver.send_memory();
  }
}

TEST_CASE("a memory file that shrinks costs its own machine the disk, and nobody else") {
  {
    Driver driver{options()};
    driver.describe(0, kIn, 0, driver.data(), 4096, true);
    REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
    const Wire& wire = driver.wire();
    driver.ring().offer(0);
    driver.ring().publish(driver.event_index());
    // The mapping of this process is gone as well: nothing of it is touched below.
    REQUIRE(::ftruncate(driver.file(), 0) == 0);
    driver.ring().do_kick();
    CHECK(wire.hears_the_end());
  }
  serves();
}

/// A second region of memory, whose file shrinks; rings and headers stay in the first.
class Annexe {
 public:
  static constexpr std::uint64_t kGuest = std::uint64_t{1} << 40;
  static constexpr std::size_t kSize = 64U << 10;

  explicit Annexe(Driver& driver) : driver_{driver} {
    if (::ftruncate(file_.get(), kSize) != 0) die("ftruncate");
    const std::uint64_t whole = driver.size();
    driver.wire().send(
        kSetMemTable,
        packed(2U, 0U, Driver::kGuest, whole, driver.user(), std::uint64_t{0}, kGuest,
               std::uint64_t{kSize}, std::uint64_t{1} << 46, std::uint64_t{0}),
        {driver.file(), file_.get()});
    driver.wire().ask(kGetFeatures);  // it is mapped
  }
  void shrink() const {
    if (::ftruncate(file_.get(), 0) != 0) die("ftruncate");
  }
  /// A request whose data are there; nobody waits for it.
  void begin(std::uint32_t type, std::uint64_t sector) const {
    driver_.describe(0, type, sector, driver_.data(), 4096, type == kIn);
    driver_.ring().parts.desc[1].addr = kGuest;
    driver_.ring().offer(0);
    driver_.ring().publish(driver_.event_index());
    driver_.ring().do_kick();
  }

 private:
  Driver& driver_;
  File file_{::memfd_create("annexe", MFD_CLOEXEC)};
};

TEST_CASE("a request whose memory file has shrunk changes no disk, and does not succeed") {
  constexpr std::uint64_t kSector = 96;
  {
    Driver driver{options()};
    std::memset(driver.data(), 0x77, 4096);
    driver.describe(0, kOut, kSector, driver.data(), 4096, false);
    REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
  }
  for (const std::uint32_t type : {kOut, kIn}) {
    Driver driver{options()};
    const Annexe annexe{driver};
    annexe.shrink();
    annexe.begin(type, kSector);
    CHECK(driver.wire().hears_the_end());
    CHECK_FALSE(driver.ring().has_used());
  }
  Driver driver{options()};
  driver.describe(0, kIn, kSector, driver.data(), 4096, true);
  REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
  CHECK(driver.data()[0] == std::byte{0x77});
}

TEST_CASE("memory that is lost is not forgotten with its table") {
  for (unsigned i = 0; i < 20; ++i) {
    Driver driver{options()};
    {
      const Annexe annexe{driver};
      annexe.shrink();
      annexe.begin(kIn, 0);
      driver.send_memory();
    }
    // Either the request has met the new table, where its data are nowhere, or the lost memory.
    const pollfd any{driver.ring().error.get(), POLLIN, 0};
    std::array<pollfd, 2> polled{any, {driver.wire().socket(), POLLRDHUP, 0}};
    CHECK(::poll(polled.data(), polled.size(), 10'000) > 0);
    CHECK_FALSE(driver.ring().has_used());
  }
  serves();
}

TEST_CASE("messages that cannot be end their front-end") {
  SUBCASE("garbage") {
    is_left([](Wire& wire) { wire.send_raw(std::string(64, 'x')); });
  }
  SUBCASE("an unknown request") {
    is_left([](Wire& wire) { wire.send(6, packed(std::uint64_t{0})); });
  }
  SUBCASE("a payload that is too long") {
    is_left([](Wire& wire) { wire.send(kSetFeatures, std::string(4096, 'x')); });
  }
  SUBCASE("features that were not offered") {
    is_left([](Wire& wire) { wire.send(kSetFeatures, packed(UINT64_MAX)); });
  }
  SUBCASE("a ring without memory") {
    is_left([](Wire& wire) {
      const File kick{::eventfd(0, EFD_NONBLOCK)};
      wire.send(kSetVringNum, state(0, 256));
      wire.send(kSetVringKick, packed(std::uint64_t{0}), {kick.get()});
    });
  }
  SUBCASE("a ring whose parts are not in memory") {
    is_left([](Wire& wire) {
      const File memory{::memfd_create("memory", 0)};
      const File kick{::eventfd(0, EFD_NONBLOCK)};
      if (::ftruncate(memory.get(), 65536) != 0) die("ftruncate");
      wire.send(kSetMemTable,
                packed(1U, 0U, std::uint64_t{0}, std::uint64_t{65536}, std::uint64_t{1} << 40,
                       std::uint64_t{0}),
                {memory.get()});
      wire.send(kSetVringNum, state(0, 256));
      const std::uint64_t at = (std::uint64_t{1} << 40) + 65536 - 2048;
      wire.send(kSetVringAddr, packed(0U, 0U, at, at, at, std::uint64_t{0}));
      wire.send(kSetVringKick, packed(std::uint64_t{0}), {kick.get()});
    });
  }
  SUBCASE("sizes of rings") {
    is_left([](Wire& wire) { wire.send(kSetVringNum, state(0, 0)); });
    is_left([](Wire& wire) { wire.send(kSetVringNum, state(0, 1U << 16)); });
    is_left([](Wire& wire) { wire.send(kSetVringBase, state(0, 1U << 16)); });
    is_left([](Wire& wire) { wire.send(kSetVringNum, state(4000, 64)); });
  }
  SUBCASE("memory longer than its file") {
    is_left([](Wire& wire) {
      const File memory{::memfd_create("memory", 0)};
      wire.send(kSetMemTable,
                packed(1U, 0U, std::uint64_t{0}, std::uint64_t{65536}, std::uint64_t{1} << 40,
                       std::uint64_t{0}),
                {memory.get()});
    });
  }
  SUBCASE("descriptors that nobody asked for") {
    is_left([](Wire& wire) {
      const File file{::eventfd(0, EFD_NONBLOCK)};
      const int fd = file.get();
      wire.send(kSetOwner, "", {fd, fd, fd});
    });
    is_left([](Wire& wire) {
      const File file{::eventfd(0, EFD_NONBLOCK)};
      wire.send(kSetOwner, "", std::vector<int>(100, file.get()));
    });
  }
  SUBCASE("calls to what is no eventfd") {
    for (const std::uint32_t type : {kSetVringCall, kSetVringErr}) {
      is_left([&](Wire& wire) {
        std::array<int, 2> ends{};
        if (::pipe(ends.data()) != 0) die("pipe");
        const File one{ends[0]};
        const File other{ends[1]};
        wire.send(type, packed(std::uint64_t{0}), {other.get()});
      });
    }
  }
  SUBCASE("a kick that cannot be waited for") {
    is_left([](Wire& wire) {
      const File memory{::memfd_create("memory", 0)};
      wire.send(kSetVringKick, packed(std::uint64_t{0}), {memory.get()});
    });
  }
}

pid_t bridge_of(const Wire& wire) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  ::getsockopt(wire.socket(), SOL_SOCKET, SO_PEERCRED, &peer, &size);
  return peer.pid;
}

/// The bridge has no room for further descriptors while this is there.
class NoDescriptors {
 public:
  explicit NoDescriptors(const Wire& wire) : bridge_{bridge_of(wire)} {
    rlim_t free = 0;
    while (std::filesystem::is_symlink(path(free))) ++free;
    if (::prlimit(bridge_, RLIMIT_NOFILE, nullptr, &before_) != 0) die("prlimit");
    const rlimit none{.rlim_cur = free, .rlim_max = before_.rlim_max};
    if (::prlimit(bridge_, RLIMIT_NOFILE, &none, nullptr) != 0) die("prlimit");
  }
  ~NoDescriptors() { ::prlimit(bridge_, RLIMIT_NOFILE, &before_, nullptr); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  std::string path(rlim_t descriptor) const {
    return "/proc/" + std::to_string(bridge_) + "/fd/" + std::to_string(descriptor);
  }

  const pid_t bridge_;
  rlimit before_{};
};

TEST_CASE("a front-end for whose queues there are no descriptors is left") {
  {
    Driver driver{options()};
    {
      const NoDescriptors none{driver.wire()};
      for (unsigned queue = 1; queue < 16; ++queue)
        driver.wire().send(kSetVringEnable, state(queue, 1));
      CHECK(driver.wire().hears_the_end());
    }
  }
  serves();
  {
    Driver driver{options()};
    {
      const NoDescriptors none{driver.wire()};
      driver.wire().send(kSetVringCall, packed(std::uint64_t{0}), {driver.ring().call.get()});
      CHECK(driver.wire().hears_the_end());
    }
  }
  serves();
}

TEST_CASE("a front-end that says half a message and waits keeps nobody from its end") {
  {
    const Wire wire{socket_path()};
    wire.send_raw("abc");
    std::this_thread::sleep_for(std::chrono::milliseconds{200});
  }
  serves();
}

TEST_CASE("a driver that writes all over its rings at random harms only itself") {
  std::mt19937_64 random{4711};
  for (unsigned round = 0; round < 30; ++round) {
    Driver driver{options()};
    Ring& ring = driver.ring();
    auto* const bytes = reinterpret_cast<std::byte*>(ring.parts.desc);
    for (unsigned slot = 0; slot < 60; ++slot)
      driver.describe(slot, slot % 2 == 0 ? kIn : kOut, slot, driver.data(), 512, slot % 2 == 0);
    for (unsigned i = 0; i < 300; ++i) {
      ring.offer(static_cast<std::uint16_t>(random() % 64 == 0 ? random() : 3 * (random() % 60)));
      ring.publish(false);
      for (unsigned n = 0; n < 4; ++n)
        bytes[random() % Ring::bytes(ring.size)] = static_cast<std::byte>(random());
      ring.do_kick();
    }
  }
  serves();
}

TEST_CASE("front-ends that come and go are all served") {
  for (unsigned i = 0; i < 50; ++i) {
    Driver driver{options()};
    driver.describe(0, kIn, 0, driver.data(), 512, true);
    REQUIRE(driver.carry_out() == VIRTIO_BLK_S_OK);
    for (unsigned slot = 1; slot < 40; ++slot) {
      driver.describe(slot, slot % 2 == 0 ? kOut : kIn, 8000 + slot, driver.data(), 512,
                      slot % 2 != 0);
      driver.ring().offer(static_cast<std::uint16_t>(3 * slot));
    }
    driver.ring().publish(driver.event_index());
    driver.ring().do_kick();  // and it is gone with all of them under way
  }
}

TEST_CASE("a disk without flushes takes writes" * doctest::skip()) {
  Driver driver{options()};
  CHECK((driver.offered() & bit(VIRTIO_BLK_F_FLUSH)) == 0);
  driver.describe(0, kOut, 0, driver.data(), 512, false);
  CHECK(driver.carry_out() == VIRTIO_BLK_S_OK);
  driver.describe(0, VIRTIO_BLK_T_WRITE_ZEROES, 0, driver.data(), 16, false);
  const virtio_blk_discard_write_zeroes range{.sector = 8, .num_sectors = 8, .flags = 0};
  std::memcpy(driver.data(), &range, sizeof(range));
  CHECK(driver.carry_out() == VIRTIO_BLK_S_OK);
}

TEST_CASE("a driver that reads for ever" * doctest::skip()) {
  Driver driver{options()};
  std::puts("begun");
  std::fflush(stdout);
  for (;;) {
    driver.describe(0, kIn, 0, driver.data(), 512, true);
    const std::uint8_t status = driver.carry_out();
    if (status == VIRTIO_BLK_S_IOERR) return;  // the server has gone
    REQUIRE(status == VIRTIO_BLK_S_OK);
  }
}

TEST_CASE("a driver whose calls block" * doctest::skip()) {
  Driver driver{options()};
  block_calls(driver);
  std::puts("begun");
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::minutes{10});
}

/// Ends that nobody looks at make room at once: all requests are in three descriptors.
TEST_CASE("a driver that floods" * doctest::skip()) {
  Options small = options();
  small.ring = 1024;
  Driver driver{small};
  Ring& ring = driver.ring();
  driver.describe(0, 77, 0, driver.data(), 512, true);
  std::puts("begun");
  std::fflush(stdout);
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes{1};
  for (unsigned round = 0; round % 4096 != 0 || std::chrono::steady_clock::now() < until; ++round) {
    const std::uint16_t used = __atomic_load_n(&ring.parts.used->idx, __ATOMIC_ACQUIRE);
    while (static_cast<std::uint16_t>(ring.next - used) < 1000) ring.offer(0);
    ring.publish(driver.event_index());
    if (round % 64 == 0) ring.do_kick();
  }
}

/// A read that a silent server does not answer, in slot 0. It is the next chain of the ring.
void begin_read(Driver& driver) {
  driver.describe(0, kIn, 0, driver.data(), 512, true);
  driver.ring().offer(0);
  if (driver.ring().publish(driver.event_index())) driver.ring().do_kick();
}

/// Reads until the server is silent.
void wait_for_silence(Driver& driver) {
  Ring& ring = driver.ring();
  std::puts("begun");
  std::fflush(stdout);
  for (;;) {
    begin_read(driver);
    if (!ring.wait(driver.event_index(), 1000)) break;
    ring.take_used();
    REQUIRE(driver.status(0) == VIRTIO_BLK_S_OK);
  }
}

/// A request behind the read that has not ended.
void end_another(Driver& driver) {
  driver.describe(1, VIRTIO_BLK_T_GET_ID, 0, driver.data(), 20, true);
  REQUIRE(driver.carry_out(1) == VIRTIO_BLK_S_OK);
}

/// A device that goes on at the number of ends would miss the read, and see the other one twice.
void has_ended_with_an_error(Driver& driver) {
  Ring& ring = driver.ring();
  REQUIRE(ring.has_used());
  CHECK(ring.take_used().id == 0);
  CHECK(driver.status(0) == VIRTIO_BLK_S_IOERR);
  CHECK(ring.next == ring.taken);
}

TEST_CASE("a driver whose ring stops while its server is silent" * doctest::skip()) {
  Driver driver{options()};
  Ring& ring = driver.ring();
  wait_for_silence(driver);
  end_another(driver);
  std::uint32_t base = driver.stop(ring);
  CHECK(base == ring.next);
  has_ended_with_an_error(driver);
  driver.start(ring, base);
  begin_read(driver);
  std::this_thread::sleep_for(std::chrono::milliseconds{300});
  base = driver.stop(ring);
  CHECK(base == ring.taken);  // nothing has ended behind it, and it can be carried out again
  CHECK_FALSE(ring.has_used());
  driver.start(ring, base);
  std::puts("stopped");
  std::fflush(stdout);
  REQUIRE(ring.wait(driver.event_index()));
  CHECK(ring.take_used().id == 0);
  CHECK(driver.status(0) == VIRTIO_BLK_S_OK);
}

TEST_CASE("a driver whose bridge ends while its server is silent" * doctest::skip()) {
  Driver driver{options()};
  wait_for_silence(driver);
  end_another(driver);
  std::puts("silent");
  std::fflush(stdout);
  REQUIRE(driver.wire().hears_the_end());
  has_ended_with_an_error(driver);
}

/// MiB in memory.
std::size_t size_of(pid_t process) {
  std::ifstream status{"/proc/" + std::to_string(process) + "/statm"};
  std::size_t ignored = 0;
  std::size_t pages = 0;
  status >> ignored >> pages;
  return pages / 256;
}

TEST_CASE("a driver of many queues, whose server is silent" * doctest::skip()) {
  constexpr unsigned kQueues = 17;
  constexpr unsigned kEach = 2;
  constexpr std::uint32_t kLength = 31U << 20;
  Options large = options();
  large.queues = kQueues;
  large.data = kLength;
  Driver driver{large};
  wait_for_silence(driver);
  for (unsigned queue = 1; queue < kQueues; ++queue) {
    for (unsigned slot = 0; slot < kEach; ++slot) {
      driver.describe(slot, kOut, 0, driver.data(), kLength, false, queue);
      driver.ring(queue).offer(static_cast<std::uint16_t>(3 * slot));
    }
    driver.ring(queue).publish(driver.event_index());
    driver.ring(queue).do_kick();
  }
  std::this_thread::sleep_for(std::chrono::seconds{1});
  CHECK(size_of(bridge_of(driver.wire())) < 512);
  std::puts("full");
  std::fflush(stdout);
  for (unsigned queue = 1; queue < kQueues; ++queue) {
    for (unsigned slot = 0; slot < kEach; ++slot) {
      REQUIRE(driver.ring(queue).wait(driver.event_index()));
      CHECK(driver.status(driver.ring(queue).take_used().id / 3, queue) == VIRTIO_BLK_S_OK);
    }
  }
}

TEST_CASE("a driver that stays" * doctest::skip()) {
  const Driver driver{options()};
  std::puts("begun");
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::minutes{10});
}

}  // namespace vhost_hostile_test
