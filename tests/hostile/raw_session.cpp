// SPDX-License-Identifier: BSD-3-Clause
#include "tests/hostile/raw_session.hpp"

#include <cstdlib>
#include <random>
#include <stdexcept>
#include <utility>

namespace rtrs::hostile {

Target target() {
  const char* text = std::getenv("RNBD_TARGET");
  if (text == nullptr) throw std::runtime_error{"RNBD_TARGET=ADDRESS:PORT is not set"};
  const std::string address{text};
  const auto colon = address.rfind(':');
  return {address.substr(0, colon),
          static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1)))};
}

bool with_new_keys() { return std::getenv("RNBD_NEW_KEYS") != nullptr; }

wire::ConnectParameters parameters(std::uint16_t cid, std::uint16_t cid_count) {
  static std::mt19937 random{std::random_device{}()};
  wire::ConnectParameters p;
  p.cid = cid;
  p.cid_count = cid_count;
  p.reconnect_count = 1;
  p.first_connection = true;
  for (auto& byte : p.path_uuid) byte = static_cast<std::uint8_t>(random());
  for (auto& byte : p.session_uuid) byte = static_cast<std::uint8_t>(random());
  return p;
}

RawSession::RawSession(RawOptions options)
    : name{std::move(options.name)}, first{parameters(0, options.cids)} {
  static int number = 0;
  if (options.beside != nullptr) {
    name = options.beside->name;
    first.session_uuid = options.beside->first.session_uuid;
  }
  if (options.again != nullptr) {
    name = options.again->name;
    first = options.again->first;
    ++first.reconnect_count;
  }
  if (name.empty()) name = "raw-" + std::to_string(++number);
  if (options.own_peer) first.extension.present = true;
  first.extension.features = options.features;
  for (std::uint16_t n = 0; n < options.cids; ++n) {
    auto here = first;
    here.cid = n;
    connections.push_back(RawConnection::toward(target().host, target().port));
    // On connection 0 this is the receive for the info response; RTRS asks for no certain size.
    connections.back()->receive(options.receives);
    connections.back()->connect(wire::bytes_of(wire::encode(here)));
    const Answer answer = connections.back()->answer();
    REQUIRE(answer.record);
    REQUIRE(answer.error == 0);
  }
  accepted = connections.front()->accepted();
  if (!options.info) return;
  send_info(wire::bytes_of(wire::encode_info_request(name)));
  REQUIRE(heard_info());
}

bool RawSession::heard_info() {
  const auto arrival = cid(0).next();
  if (!arrival || arrival->immediate || arrival->message.empty()) return false;
  const auto found =
      wire::decode_info_response(arrival->message, accepted.queue_depth, chunk_size());
  if (!found) return false;
  chunks = *found;
  return true;
}

bool RawSession::is_closed() {
  bool all = true;
  for (auto& connection : connections) all = connection->is_closed() && all;
  return all;
}

void RawSession::request(std::uint32_t buffer, std::uint32_t offset, ConstBytes bytes,
                         std::uint32_t header_offset, std::size_t on) {
  RemoteMemory to = chunk(buffer);
  to.address += offset;
  cid(on).post({.payload = bytes, .to = to, .immediate = immediate(buffer, header_offset)});
}

void RawSession::start_read(ConstBytes message, std::uint32_t room, std::uint32_t buffer,
                            std::size_t on) {
  wire::ReadHeader header;
  header.user_length = static_cast<std::uint16_t>(message.size());
  header.descriptor_count = static_cast<std::uint16_t>(room > 0 ? 1 : 0);
  const RemoteMemory here = cid(on).exposed();
  const wire::Descriptor descriptor{here.address, here.key, room};
  std::vector<std::byte> bytes{message.begin(), message.end()};
  const auto rest = room > 0 ? joined(header, descriptor) : joined(header);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  request(buffer, room, bytes, room + static_cast<std::uint32_t>(message.size()), on);
}

void RawSession::start_write(ConstBytes message, ConstBytes data, std::uint32_t buffer,
                             std::size_t on) {
  wire::WriteHeader header;
  header.user_length = static_cast<std::uint16_t>(message.size());
  std::vector<std::byte> bytes{data.begin(), data.end()};
  bytes.insert(bytes.end(), message.begin(), message.end());
  const auto rest = joined(header);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  request(buffer, 0, bytes, static_cast<std::uint32_t>(data.size() + message.size()), on);
}

std::optional<int> RawSession::answer(std::size_t on) {
  while (const auto arrival = cid(on).next()) {
    if (!arrival->immediate || *arrival->immediate == wire::kHeartbeatAck) continue;
    if (*arrival->immediate != wire::kHeartbeat) {
      const auto response = wire::decode_response(*arrival->immediate);
      if (accepted.new_rkey) {
        const auto rkey = wire::decode_rkey_message(arrival->message, response.buffer_id);
        REQUIRE(rkey);
        chunks.at(response.buffer_id).key = rkey->key;
      }
      return response.error;
    }
    cid(on).post({.immediate = wire::kHeartbeatAck});
  }
  return std::nullopt;
}

std::uint32_t RawSession::open(std::string_view device, rnbd::wire::AccessMode mode) {
  REQUIRE(read(wire::bytes_of(rnbd::wire::encode_open(device, mode)),
               sizeof(rnbd::wire::OpenResponse)) == 0);
  return wire::copy_of<rnbd::wire::OpenResponse>(data().first(sizeof(rnbd::wire::OpenResponse)))
      .device_id;
}

rnbd::wire::Io io(std::uint32_t device, std::uint32_t rw, std::uint64_t sector,
                  std::uint32_t length) {
  rnbd::wire::Io message;
  message.header.type = 4;
  message.device_id = device;
  message.sector = sector;
  message.rw = rw;
  message.length = length;
  return message;
}

}  // namespace rtrs::hostile
