// SPDX-License-Identifier: BSD-3-Clause
// The users: what they ask, and what the answers justify.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"
#include "tests/sim/memory/memory_world.hpp"

namespace sim {
namespace {

namespace wire = rnbd::wire;
using rtrs::wire::PathKind;

constexpr std::size_t kMostLinks = 2;
constexpr std::uint32_t kRights = wire::kMapRead | wire::kMapWrite;

template <class Message>
std::vector<std::byte> bytes_of(const Message& message) {
  const auto bytes = rtrs::wire::bytes_of(message);
  return {bytes.begin(), bytes.end()};
}

template <class Part>
void append(std::vector<std::byte>& bytes, const Part& part) {
  const auto more = rtrs::wire::bytes_of(part);
  bytes.insert(bytes.end(), more.begin(), more.end());
}

}  // namespace

void MemoryWorld::act(User& user) {
  if (user.session && of(user).core->over()) return begin_anew(user);
  if (!user.session || user.links.empty()) return connect(user);
  if (user.links.size() < kMostLinks && rng_.chance(50)) return connect(user);
  if (!user.device) return open(user);
  if (user.lost) return revoke(user);
  if (user.memory == nullptr) return connect_memory(user);
  act_with_memory(user);
}

void MemoryWorld::act_with_memory(User& user) {
  if (user.recalled && !user.stubborn && rng_.chance(500)) return give_back(user);
  const std::uint64_t what = rng_.below(100);
  if (what < 15) return alloc(user);
  if (what < 40) return map(user, user.memory->uuid(), /*mine=*/true);
  if (what < 55 && !user.maps.empty()) return unmap(user, rng_.below(user.maps.size()));
  if (what < 80) return write_one_sided(user);
  if (survivor_ != nullptr) return;
  if (what < 82) return close(user);
  if (what < 84) return abandon(user, user.memory->uuid());
  if (!rng_.chance(hostile_)) return;
  const User& other = users_[rng_.below(users_.size())];
  if (other.number != user.number && other.memory != nullptr)
    map(user, other.memory->uuid(), /*mine=*/false);
}

// ---- Paths -------------------------------------------------------------------------------------

void MemoryWorld::connect(User& user) {
  if (!user.session) user.session = new_session(user.number);
  MemoryLink& link = new_link(user, PathKind::requests);
  if (!link.say_name(of(user).core->name.c_str())) fail("a path for requests is refused");
  say("user " + std::to_string(user.number) + " has a path");
  user.links.push_back(&link);
  send_waiting(user);
}

/// M6. A server that has closed the other paths refuses it.
void MemoryWorld::connect_memory(User& user) {
  const bool has_others = of(user).core->connected_paths() > 0;
  MemoryLink& link = new_link(user, PathKind::memory);
  const bool is_in = link.say_name(of(user).core->name.c_str());
  if (is_in != has_others)
    fail(is_in ? "a memory path comes to a session without other paths"
               : "a memory path is refused");
  if (!is_in) return;
  say("user " + std::to_string(user.number) + " has a memory path");
  user.memory = &link;
}

/// Messages that are under way may arrive yet, until the server finds out.
void MemoryWorld::lose(User& user, MemoryLink* link) {
  say("user " + std::to_string(user.number) + " loses a path");
  link->client_lives = false;
  std::erase(user.links, link);
  later([link] { link->close(); });
  for (auto it = user.operations.begin(); it != user.operations.end();) {
    Operation& operation = it->second;
    if (operation.over != link) {
      ++it;
      continue;
    }
    operation.over = nullptr;
    if (!operation.may_give_up || !rng_.chance(600)) {
      ++it;
      continue;
    }
    const Then then = std::move(operation.then);
    it = user.operations.erase(it);
    then(EINTR, {});
  }
  send_waiting(user);
}

void MemoryWorld::lose_memory(User& user) {
  say("user " + std::to_string(user.number) + " loses its memory path");
  MemoryLink* const link = user.memory;
  link->client_lives = false;
  user.lost = link->uuid();
  user.memory = nullptr;
  user.maps.clear();
  later([link] { link->close(); });
}

/// It gives a path up that may have keys, and the server finds that out later.
void MemoryWorld::abandon(User& user, const Uuid& path) {
  if (user.memory != nullptr && user.memory->uuid() == path) lose_memory(user);
}

/// M5. The server has ended the session.
void MemoryWorld::begin_anew(User& user) {
  say("user " + std::to_string(user.number) + " begins anew");
  if (std::ranges::any_of(user.links, [](const MemoryLink* link) { return link->server_lives; }))
    fail("a session ends that has a path for requests");
  const auto links = user.links;
  for (MemoryLink* link : links) {
    link->client_lives = false;
    later([link] { link->close(); });
  }
  if (user.memory != nullptr) {
    MemoryLink* const link = user.memory;
    link->client_lives = false;
    later([link] { link->close(); });
  }
  const User old = std::move(user);
  user = User{.number = old.number, .stubborn = old.stubborn};
}

// ---- Requests ----------------------------------------------------------------------------------

/// False: all permits are in use.
bool MemoryWorld::submit(User& user, Bytes message, std::uint32_t room, Then then,
                         bool may_give_up) {
  for (std::uint32_t permit = 0; permit < kMemoryDepth; ++permit) {
    if (user.operations.contains(permit)) continue;
    Operation& operation = user.operations[permit];
    operation.message = std::move(message);
    operation.room = room;
    operation.number = next_++;
    operation.then = std::move(then);
    operation.may_give_up = may_give_up;
    if (room == 0) operation.generation = ++user.generations[permit];
    send(user, permit);
    return true;
  }
  return false;
}

void MemoryWorld::send(User& user, std::uint32_t permit) {
  if (user.links.empty()) return;
  Operation& operation = user.operations.at(permit);
  operation.over = user.links[rng_.below(user.links.size())];
  ToServer message{.permit = permit, .bytes = Bytes(operation.room)};
  message.bytes.insert(message.bytes.end(), operation.message.begin(), operation.message.end());
  if (operation.room == 0)
    append(message.bytes, rtrs::wire::WriteTrailer{.generation = operation.generation});
  const auto end = static_cast<std::uint32_t>(message.bytes.size());
  const auto length = static_cast<std::uint16_t>(end - operation.room);
  message.immediate = rtrs::wire::encode(rtrs::wire::RequestImmediate{permit, end}, kMemoryDepth);
  if (operation.room == 0) {
    append(message.bytes, rtrs::wire::WriteHeader{.user_length = length});
  } else {
    append(message.bytes, rtrs::wire::ReadHeader{.user_length = length, .descriptor_count = 1});
    append(message.bytes,
           rtrs::wire::Descriptor{.address = operation.number, .key = 1, .length = operation.room});
  }
  operation.over->to_server.push_back(std::move(message));
}

void MemoryWorld::send_waiting(User& user) {
  for (auto& [permit, operation] : user.operations)
    if (operation.over == nullptr) send(user, permit);
}

void MemoryWorld::hear(User& user, MemoryLink& link, const ToClient& message) {
  switch (rtrs::wire::type_of(message.immediate)) {
    case rtrs::wire::ImmediateType::recall:
      of(user).heard = message.immediate & rtrs::wire::kImmediatePayloadMask;
      user.recalled = true;
      link.to_server.push_back({.immediate = message.immediate});
      return;
    case rtrs::wire::ImmediateType::io_response:
      break;
    default:
      return;
  }
  const auto response = rtrs::wire::decode_response(message.immediate);
  const auto found = user.operations.find(response.buffer_id);
  if (found == user.operations.end() || found->second.over != &link) return;
  if (found->second.room > 0 && response.error == 0 && message.operation != found->second.number)
    return;  // of one that was given up
  const Operation operation = std::move(found->second);
  user.operations.erase(found);
  ++operations_;
  operation.then(response.error, message.data);
}

/// M1.
void MemoryWorld::end_keys(const char* what, const std::function<bool(const CardKey&)>& which) {
  for (auto& [number, key] : keys_) {
    if (!which(key)) continue;
    if (key.alive) fail(std::string{what} + " is answered while a key is alive");
    key.over = true;
  }
}

/// M2.
void MemoryWorld::open(User& user) {
  if (user.opening) return;
  wire::NumberedOpen message{wire::encode_open("brick", wire::AccessMode::read_write), {}};
  message.order.number = message.order.settled = ++user.opens;
  user.opening = submit(user, bytes_of(message), sizeof(wire::OpenResponse),
                        [this, &user, session = *user.session](int error, const Bytes& data) {
                          user.opening = false;
                          if (error != 0) return;
                          wire::OpenResponse opened;
                          std::memcpy(&opened, data.data(), sizeof(opened));
                          user.device = opened.device_id;
                          say("user " + std::to_string(user.number) + " is let in");
                          for (const auto& [number, key] : keys_)
                            if (key.alive && key.session != session)
                              fail("a writer is let in while a key of another one is alive");
                        });
}

void MemoryWorld::close(User& user) {
  if (!user.operations.empty()) return;
  wire::NumberedClose message;
  message.header = wire::header_of(wire::MessageType::close);
  message.device_id = *user.device;
  message.order.number = user.opens;
  message.order.settled = user.opens + 1;
  user.closing = submit(user, bytes_of(message), 0, [this, &user](int error, const Bytes&) {
    user.closing = false;
    if (error != 0) fail("CLOSE fails with errno " + std::to_string(error));
    say("user " + std::to_string(user.number) + " has closed");
    user.device.reset();
    user.maps.clear();
    end_keys("CLOSE",
             [session = *user.session](const CardKey& key) { return key.session == session; });
  });
}

void MemoryWorld::alloc(User& user) {
  if (user.closing) return;
  wire::BrickRange message;
  message.header = wire::header_of(wire::kBrickAlloc);
  message.device_id = *user.device;
  message.id = rng_.below(blocks_) * wire::kBrickBlock;
  message.count = 1;
  submit(user, bytes_of(message), 0, [](int, const Bytes&) {});
}

/// One at a time, as rnbd::RemoteBrick. A user of bad will names the path of somebody else.
void MemoryWorld::map(User& user, const Uuid& path, bool mine) {
  if (user.mapping || user.closing) return;
  wire::BrickMap message;
  message.header = wire::header_of(wire::kBrickMap);
  message.device_id = *user.device;
  message.id = rng_.below(blocks_) * wire::kBrickBlock;
  message.count = 1;
  message.flags = kRights;
  message.path = path;
  message.number = message.settled = ++user.maps_asked;
  user.mapping = submit(
      user, bytes_of(message), sizeof(wire::BrickMapResponse) + sizeof(wire::MapEntry),
      [this, &user, message, mine](int error, const Bytes& data) {
        user.mapping = false;
        if (error == EINTR) return abandon(user, message.path);
        mapped(user, message, mine, error, data);
      },
      /*may_give_up=*/true);
}

void MemoryWorld::mapped(User& user, const wire::BrickMap& asked, bool mine, int error,
                         const Bytes& data) {
  if (error != 0) return;
  if (!mine) fail("a client gets a key of another one's path");
  const auto entries = wire::decode_brick_maps(data, asked);
  if (!entries) fail("a MAP is answered with something else");
  const wire::MapEntry& entry = entries->front();
  if (user.memory == nullptr || user.memory->uuid() != asked.path) return;
  const auto key = keys_.find(entry.key);
  if (key == keys_.end() || key->second.path != asked.path)
    fail("a MAP is answered with a key of another path");
  say("user " + std::to_string(user.number) + " has key " + std::to_string(entry.key));
  user.maps.push_back({entry.id, entry.generation, entry.key});
}

void MemoryWorld::unmap(User& user, std::size_t which) {
  if (user.closing) return;
  const Map map = user.maps[which];
  wire::BrickUnmap message;
  message.header = wire::header_of(wire::kBrickUnmap);
  message.device_id = *user.device;
  message.id = map.id;
  message.count = 1;
  message.generation = map.generation;
  const bool sent = submit(user, bytes_of(message), 0, [this, map](int error, const Bytes&) {
    if (error != 0) return;
    end_keys("UNMAP", [key = &keys_.at(map.key)](const CardKey& one) { return &one == key; });
  });
  if (sent) user.maps.erase(user.maps.begin() + static_cast<std::ptrdiff_t>(which));
}

void MemoryWorld::revoke(User& user) {
  if (user.revoking || user.mapping || user.closing) return;
  wire::BrickRevokePath message;
  message.header = wire::header_of(wire::kBrickRevokePath);
  message.device_id = *user.device;
  message.path = *user.lost;
  user.revoking =
      submit(user, bytes_of(message), 0, [this, &user, path = *user.lost](int error, const Bytes&) {
        user.revoking = false;
        user.lost.reset();
        if (error != 0) fail("REVOKE PATH fails with errno " + std::to_string(error));
        say("a memory path of user " + std::to_string(user.number) + " is revoked");
        revoked_.insert(path);
        end_keys("REVOKE PATH", [&path](const CardKey& key) { return key.path == path; });
      });
}

void MemoryWorld::give_back(User& user) {
  if (user.listing || user.closing) return;
  user.recalled = false;
  wire::BrickList message;
  message.header = wire::header_of(wire::kBrickList);
  message.device_id = *user.device;
  message.what = static_cast<std::uint32_t>(wire::BrickListing::recalled);
  user.listing = submit(user, bytes_of(message), 1024, [this, &user](int error, const Bytes& data) {
    user.listing = false;
    if (error != 0) return;
    const auto page = wire::decode_brick_extents(data, 0);
    if (!page) fail("a LIST is answered with something else");
    for (const wire::BrickExtent& extent : page->extents)
      for (std::size_t i = user.maps.size(); i-- > 0;)
        if (user.maps[i].id - extent.id < extent.blocks * wire::kBrickBlock) unmap(user, i);
  });
}

// ---- One-sided ---------------------------------------------------------------------------------

void MemoryWorld::write_one_sided(const User& user) {
  if (user.maps.empty()) return;
  writes_.push_back(user.maps[rng_.below(user.maps.size())].key);
}

/// The network card looks at the key and nothing else.
void MemoryWorld::land(std::size_t which) {
  const CardKey& key = keys_.at(writes_[which]);
  writes_.erase(writes_.begin() + static_cast<std::ptrdiff_t>(which));
  if (!key.alive) return;
  if (key.over) fail("bytes land although the client was told that its key is dead");
  ++operations_;
}

}  // namespace sim
