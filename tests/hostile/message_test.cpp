// SPDX-License-Identifier: BSD-3-Clause
// RNBD messages that nobody should send are answered with an errno, and the session goes on.
#include <array>
#include <cerrno>

#include "tests/hostile/raw_session.hpp"
#include "tests/hostile/victim.hpp"

namespace rtrs::hostile::message_test {
namespace {

using rnbd::wire::AccessMode;
using wire::bytes_of;
constexpr std::uint32_t kRead = 0, kWrite = 1, kFlush = 2, kDiscard = 3, kErase = 4, kZeroes = 5;

/// Afterwards nothing was logged, and both sessions work.
template <class Test>
void goes_on(Test test, RawOptions options = {}) {
  auto& victim = Victim::get();
  RawSession session{std::move(options)};
  victim.forget_log();
  test(session);
  const auto device = session.open("small", AccessMode::read_only);
  CHECK(session.read(bytes_of(io(device, kRead, 0, 512)), 512) == 0);
  victim.is_content();
}

TEST_CASE("messages that are no messages") {
  goes_on([](RawSession& session) {
    for (const std::uint16_t type : {1, 3, 6, 77, 0x8001, 0x8005, 0xFFFF}) {
      std::array<wire::le16, 144> message{};
      message[0] = type;
      CHECK(session.write(bytes_of(message)) == EINVAL);
    }
    CHECK(session.write({}) == EINVAL);
    const auto open = rnbd::wire::encode_open("small", AccessMode::read_only);
    for (const std::size_t size : {1, 3, 4, 5, 260}) {
      CHECK(session.read(bytes_of(open).first(size), 56) == EINVAL);
    }
    CHECK(session.read(bytes_of(open), 55) == EINVAL);  // no room for the answer
    CHECK(session.write(bytes_of(open)) == EINVAL);
  });
}

/// The whole message is answered as told, and a part of it, right behind it in the same chunk, with
/// EINVAL.
void check_parts(RawSession& session, const std::vector<std::byte>& message, std::uint32_t room,
                 int error = 0) {
  const ConstBytes whole{message};
  CAPTURE(whole.size());
  CHECK(session.read(whole, room) == error);
  for (const std::size_t size : {whole.size() - 1, std::size_t{5}, std::size_t{4}}) {
    CHECK(session.read(whole.first(size), room) == EINVAL);
  }
  CHECK(session.read(whole, room) == error);
}

template <class Message>
std::vector<std::byte> message(rnbd::wire::MessageType type, Message fields) {
  fields.header = rnbd::wire::header_of(type);
  return joined(fields);
}

TEST_CASE("messages that are one byte too short, right behind whole ones") {
  using rnbd::wire::BlockStatus, rnbd::wire::Cache, rnbd::wire::Close, rnbd::wire::DeviceInfo;
  using rnbd::wire::ListExports, rnbd::wire::MessageType, rnbd::wire::SessionInfo;
  const auto attack = [](RawSession& session) {
    const auto device = session.open("small", AccessMode::read_only);
    const BlockStatus status{.header = {}, .device_id = device, .offset = 0, .length = 4096};
    const Cache ahead{.header = {}, .device_id = device, .offset = 0, .length = 4096};
    const Close nothing{.header = {}, .device_id = 7};
    const Close all{.header = {}, .device_id = device};
    check_parts(session, message(MessageType::session_info, SessionInfo{}), 36);
    check_parts(session, joined(rnbd::wire::encode_open("disk0", AccessMode::read_only)), 56);
    check_parts(session, message(MessageType::device_info, DeviceInfo{{}, device}), 64);
    check_parts(session, message(MessageType::list_exports, ListExports{}), 4096);
    check_parts(session, message(MessageType::block_status, status), 64);
    check_parts(session, message(MessageType::cache, ahead), 0, EOPNOTSUPP);
    check_parts(session, message(MessageType::close, nothing), 0);
    auto smallest = joined(io(device, kRead, 0, 512));
    smallest.resize(rnbd::wire::kMinIoSize);
    check_parts(session, smallest, 512);
    const auto close = message(MessageType::close, all);
    CHECK(session.write(ConstBytes{close}.first(7)) == EINVAL);
    CHECK(session.read(bytes_of(io(device, kRead, 0, 512)), 512) == 0);  // it is still open
  };
  goes_on(attack, {.own_peer = true, .features = wire::kFeatureUserMessages});
}

TEST_CASE("names that cannot be opened") {
  goes_on([](RawSession& session) {
    for (const std::string name : {"nothing", "../small", "/etc/passwd", "small/../small"}) {
      CHECK(session.read(bytes_of(rnbd::wire::encode_open(name, AccessMode::read_only)), 56) ==
            ENOENT);
    }
    auto open = rnbd::wire::encode_open("small", AccessMode::read_only);
    open.access_mode = 3;
    CHECK(session.read(bytes_of(open), 56) == EINVAL);
    open.access_mode = 0;
    open.device_name[2] = '\n';
    CHECK(session.read(bytes_of(open), 56) == EINVAL);
    open.device_name.fill('x');  // and no end
    CHECK(session.read(bytes_of(open), 56) == EINVAL);
    open.device_name.fill('\0');
    CHECK(session.read(bytes_of(open), 56) == EINVAL);
  });
}

TEST_CASE("modes that others or the export forbid") {
  goes_on([](RawSession& session) {
    const auto answer = [&](std::string_view name, AccessMode mode) {
      return session.read(bytes_of(rnbd::wire::encode_open(name, mode)), 56);
    };
    CHECK(answer("disk0", AccessMode::read_write) == EPERM);  // the honest session writes there
    CHECK(answer("readonly", AccessMode::read_write) == EROFS);
    CHECK(answer("readonly", AccessMode::migration) == EROFS);
  });
}

TEST_CASE("devices that are not open in this session") {
  goes_on([](RawSession& session) {
    for (const std::uint32_t device : {0U, 1U, 1024U, 0xFFFFFFFFU}) {
      CHECK(session.read(bytes_of(io(device, kRead, 0, 512)), 512) == ENOTCONN);
      CHECK(session.write(bytes_of(io(device, kWrite, 0, 512)), std::vector<std::byte>(512)) ==
            ENOTCONN);
    }
    // A session cannot use a device that another one has open.
    RawSession other;
    const auto device = other.open("small", AccessMode::read_write);
    CHECK(session.read(bytes_of(io(device, kRead, 0, 512)), 512) == ENOTCONN);
  });
}

TEST_CASE("I/O outside of the device, or of impossible lengths") {
  goes_on([](RawSession& session) {
    const auto device = session.open("small", AccessMode::read_write);
    const std::uint64_t end = (1 << 20) / 512;
    for (const std::uint64_t sector : {end, end - 1, end * 2, std::uint64_t{1} << 55,
                                       std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
      CHECK(session.read(bytes_of(io(device, kRead, sector, 1024)), 1024) == EIO);
      CHECK(session.write(bytes_of(io(device, kWrite, sector, 1024)),
                          std::vector<std::byte>(1024)) == EIO);
      CHECK(session.write(bytes_of(io(device, kZeroes, sector, 1024))) == EIO);
      CHECK(session.write(bytes_of(io(device, kDiscard, sector, 1024))) == EIO);
    }
    CHECK(session.write(bytes_of(io(device, kDiscard, 0, 0xFFFFFE00))) == EIO);
    CHECK(session.read(bytes_of(io(device, kRead, 0, 0)), 0) == EINVAL);
    CHECK(session.read(bytes_of(io(device, kRead, 0, 513)), 513) == EINVAL);
    CHECK(session.read(bytes_of(io(device, kRead, 0, 1024)), 512) == EINVAL);
    CHECK(session.read(bytes_of(io(device, kRead, 0, 512)), 1024) == EINVAL);
    CHECK(session.write(bytes_of(io(device, kWrite, 0, 1024)), std::vector<std::byte>(512)) ==
          EINVAL);
    CHECK(session.write(bytes_of(io(device, kZeroes, 0, 512)), std::vector<std::byte>(512)) ==
          EOPNOTSUPP);
  });
}

TEST_CASE("operations and directions that cannot be") {
  goes_on([](RawSession& session) {
    const auto device = session.open("small", AccessMode::read_write);
    for (const std::uint32_t operation : {6U, 9U, 255U, kErase}) {
      CHECK(session.write(bytes_of(io(device, operation, 0, 512))) == EOPNOTSUPP);
      CHECK(session.read(bytes_of(io(device, operation, 0, 512)), 512) == EOPNOTSUPP);
    }
    for (const std::uint32_t flag : {0x1000U, 0x2000'0000U, 0x8000'0000U}) {
      CHECK(session.read(bytes_of(io(device, kRead | flag, 0, 512)), 512) == 0);  // as Linux's
      CHECK(session.write(bytes_of(io(device, kZeroes | flag, 0, 512))) == EOPNOTSUPP);
    }
    CHECK(session.read(bytes_of(io(device, kRead | 0x200, 0, 512)), 512) == EINVAL);
    CHECK(session.read(bytes_of(io(device, kWrite, 0, 512)), 512) == EINVAL);
    CHECK(session.write(bytes_of(io(device, kRead, 0, 512)), std::vector<std::byte>(512)) ==
          EINVAL);
    CHECK(session.read(bytes_of(io(device, kDiscard, 0, 512)), 512) == EINVAL);
  });
}

TEST_CASE("reads without a descriptor have no data, whatever stands in front of their message") {
  goes_on([](RawSession& session) {
    const auto device = session.open("small", AccessMode::read_write);
    const std::vector<std::byte> ones(512, std::byte{1});
    for (const std::uint32_t operation : {kRead, kWrite, kDiscard, kZeroes}) {
      CAPTURE(operation);
      const auto message = io(device, operation, 0, 512);
      CHECK(session.read(bytes_of(message), 0) == EINVAL);
      auto bytes = joined(message, wire::ReadHeader{.user_length = 32});
      bytes.insert(bytes.begin(), ones.begin(), ones.end());
      session.request(0, 0, bytes, 544);
      CHECK(session.answer() == EINVAL);
    }
    REQUIRE(session.read(bytes_of(io(device, kRead, 0, 512)), 512) == 0);
    CHECK(session.data()[0] != ones[0]);
  });
}

TEST_CASE("a flush comes in either direction, with nothing else") {
  goes_on([](RawSession& session) {
    const auto device = session.open("small", AccessMode::read_write);
    const std::vector<std::byte> data(512);
    for (const std::uint64_t sector : {std::uint64_t{0}, ~std::uint64_t{0}}) {
      CHECK(session.write(bytes_of(io(device, kFlush, sector, 0))) == 0);
      CHECK(session.read(bytes_of(io(device, kFlush, sector, 0)), 0) == 0);
      CHECK(session.write(bytes_of(io(device, kFlush, sector, 512))) == EINVAL);
      CHECK(session.write(bytes_of(io(device, kFlush, sector, 512)), data) == EINVAL);
      CHECK(session.write(bytes_of(io(device, kFlush, sector, 0)), data) == EINVAL);
      CHECK(session.read(bytes_of(io(device, kFlush, sector, 512)), 0) == EINVAL);
      CHECK(session.read(bytes_of(io(device, kFlush, sector, 0)), 512) == EINVAL);
    }
  });
}

TEST_CASE("operations that the export does not offer, and parts of its 4096-byte blocks") {
  goes_on([](RawSession& session) {
    using rnbd::wire::OpenResponse;
    const auto device = session.open("crude", AccessMode::read_write);
    const auto offer = wire::copy_of<OpenResponse>(session.data().first(sizeof(OpenResponse)));
    CHECK(offer.max_discard_sectors == 0);
    CHECK(offer.max_write_zeroes_sectors == 0);
    CHECK(offer.logical_block_size == 4096);
    for (const std::uint32_t operation : {kDiscard, kZeroes}) {
      CHECK(session.write(bytes_of(io(device, operation, 0, 4096))) == EOPNOTSUPP);
      CHECK(session.write(bytes_of(io(device, operation, 1, 512))) == EOPNOTSUPP);
    }
    struct {
      std::uint64_t sector;
      std::uint32_t length;
    } const parts[] = {{0, 512}, {0, 3584}, {1, 4096}, {7, 512}, {0, 4608}, {4, 8192}};
    for (const auto& [sector, length] : parts) {
      CAPTURE(sector);
      CAPTURE(length);
      CHECK(session.read(bytes_of(io(device, kRead, sector, length)), length) == EINVAL);
      CHECK(session.write(bytes_of(io(device, kWrite, sector, length)),
                          std::vector<std::byte>(length)) == EINVAL);
    }
    CHECK(session.read(bytes_of(io(device, kRead, 8, 4096)), 4096) == 0);
  });
}

TEST_CASE("changes through a read-only mapping") {
  goes_on([](RawSession& session) {
    const auto device = session.open("small", AccessMode::read_only);
    CHECK(session.write(bytes_of(io(device, kErase, 0, 512))) == EOPNOTSUPP);
    for (const std::uint32_t operation : {kWrite, kZeroes, kDiscard}) {
      const std::vector<std::byte> data(operation == kWrite ? 512 : 0);
      CHECK(session.write(bytes_of(io(device, operation, 0, 512)), data) == EROFS);
      CHECK(session.read(bytes_of(io(device, operation, 0, 512)), 512) == EROFS);
    }
    CHECK(session.read(bytes_of(io(device, kFlush, ~std::uint64_t{0}, 0)), 0) == 0);
  });
}

TEST_CASE("what is not open can be closed, twice") {
  goes_on([](RawSession& session) {
    rnbd::wire::Close close;
    close.header.type = 5;
    for (const std::uint32_t device : {0U, 7U, 0xFFFFFFFFU}) {
      close.device_id = device;
      CHECK(session.write(bytes_of(close)) == 0);
    }
    close.device_id = session.open("small", AccessMode::read_only);
    CHECK(session.write(bytes_of(close)) == 0);
    CHECK(session.write(bytes_of(close)) == 0);
    CHECK(session.read(bytes_of(io(close.device_id, kRead, 0, 512)), 512) == ENOTCONN);
  });
}

}  // namespace
}  // namespace rtrs::hostile::message_test
