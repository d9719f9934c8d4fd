// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/linux_server.hpp"

#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"

namespace sim {
namespace {

/// The low bits of a key count its lives.
constexpr std::uint32_t kLives = 0xFF;

std::vector<std::byte> copy(rtrs::ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

void LinuxServer::set_chunks(rtrs::MutableBytes memory) {
  if (chunks_[0].key != 0) return;  // every connection exposes the same memory
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    Chunk& chunk = chunks_[i];
    chunk.memory = memory.subspan(std::size_t{i} * chunk_size_, chunk_size_);
    chunk.address = world_.rng().next() >> 8;
    chunk.key = ((i + 1) << 8) | static_cast<std::uint32_t>(world_.rng().below(kLives + 1));
    chunk.open = true;
  }
}

std::vector<std::byte> LinuxServer::info_response() const {
  std::vector<rtrs::wire::Descriptor> descriptors;
  for (const Chunk& chunk : chunks_) descriptors.push_back({chunk.address, chunk.key, chunk_size_});
  return rtrs::wire::encode_info_response(descriptors);
}

const LinuxServer::Chunk* LinuxServer::find(std::uint32_t key) const {
  const std::size_t i = (key >> 8) - 1;
  return i < chunks_.size() && chunks_[i].key == key ? &chunks_[i] : nullptr;
}

void LinuxServer::arrived(std::uint32_t immediate) {
  if (rtrs::wire::type_of(immediate) != rtrs::wire::ImmediateType::io_request) return;
  const auto depth = static_cast<std::uint32_t>(chunks_.size());
  const auto request = rtrs::wire::decode_request(immediate, depth);
  if (new_keys_ && request.buffer_id < depth) chunks_[request.buffer_id].open = false;
}

std::vector<std::byte> LinuxServer::renew(std::uint32_t buffer_id) {
  Chunk& chunk = chunks_.at(buffer_id);
  chunk.key = (chunk.key & ~kLives) | ((chunk.key + 1) & kLives);
  chunk.open = true;
  rtrs::wire::RkeyMessage message;
  message.buffer_id = static_cast<std::uint16_t>(buffer_id);
  message.key = chunk.key;
  return copy(rtrs::wire::bytes_of(message));
}

}  // namespace sim
