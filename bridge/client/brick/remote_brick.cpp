// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/brick/remote_brick.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/client/control.hpp"

namespace rnbd {
namespace {

constexpr std::size_t kListRoom = 64 * 1024;  ///< bytes of one page

Failure no_brick(const std::string& name) {
  return {ENOTSUP, "'" + name +
                       "' is no brick, or its server is too old for bricks: export it with "
                       "brick:"};
}

bool is_inside(std::uint64_t offset, std::size_t length) {
  return offset <= wire::kBrickBlock && length <= wire::kBrickBlock - offset;
}

rtrs::RemoteMemory at(const MappedBlock& block, std::uint64_t offset) {
  return {block.where.address + offset, block.where.key};
}

}  // namespace

// ---- Coming and going --------------------------------------------------------------------------

tl::expected<std::unique_ptr<RemoteBrick>, Failure> RemoteBrick::open(
    Session& session, const std::string& name, const OpenOptions& options,
    const rtrs::PathAddress& address, const Interrupt& interrupt) {
  if ((session.client().limits().features & kBrickFeatures) != kBrickFeatures) {
    return tl::unexpected(no_brick(name));
  }
  auto device = session.open(name, options, interrupt);
  if (!device) return tl::unexpected(device.error());
  std::unique_ptr<RemoteBrick> brick{new RemoteBrick{std::move(*device), address}};
  if (const auto info = brick->info(interrupt); !info) {
    if (info.error() == EOPNOTSUPP) return tl::unexpected(no_brick(name));
    return tl::unexpected(Failure{info.error(), "the server does not describe the brick '" + name +
                                                    "': " + describe_error(info.error())});
  }
  if (auto connected = brick->reconnect(address, interrupt); !connected)
    return tl::unexpected(connected.error());
  return brick;
}

tl::expected<void, Failure> RemoteBrick::reconnect(const rtrs::PathAddress& address,
                                                   const Interrupt& interrupt) {
  auto path = client().open_memory_path(address, interrupt);
  if (!path) return tl::unexpected(path.error());
  const std::lock_guard lock{mutex_};
  path_ = *std::move(path);
  return {};
}

std::shared_ptr<rtrs::MemoryPath> RemoteBrick::path() const {
  const std::lock_guard lock{mutex_};
  return path_;
}

tl::expected<void, Failure> RemoteBrick::recover(const Interrupt& interrupt) {
  const std::lock_guard alone{recovery_};
  if (alive()) return {};
  if (auto revoked = revoke(interrupt); !revoked) return revoked;
  return reconnect(address_, interrupt);
}

tl::expected<void, Failure> RemoteBrick::revoke(const Interrupt& interrupt) {
  const auto old = path();
  wire::BrickRevokePath revoke;
  revoke.header = wire::header_of(wire::kBrickRevokePath);
  revoke.path = old->uuid();
  // A path that the server does not know has ended there, or never had a key.
  if (const int error = order(revoke, interrupt); error != 0 && error != ENOENT) {
    return tl::unexpected(Failure{error, std::string{"the server does not say that the lost memory "
                                                     "path has ended: "} +
                                             describe_error(error)});
  }
  return {};
}

RemoteBrick::~RemoteBrick() { on_recall(nullptr); }

void RemoteBrick::on_recall(std::function<void()> listener) {
  device_->session().recalls().listen(this, std::move(listener));
}

// ---- Messages ----------------------------------------------------------------------------------

template <class Message>
int RemoteBrick::order(const Message& message, const Interrupt& interrupt) {
  ControlOperation operation{device_->handle(), message};
  return client().run(operation, interrupt);
}

template <class Message>
int RemoteBrick::ask(const Message& message, rtrs::MutableBytes answer,
                     const Interrupt& interrupt) {
  ControlOperation operation{device_->handle(), message, answer};
  return client().run(operation, interrupt);
}

tl::expected<wire::BrickInfoResponse, int> RemoteBrick::info(const Interrupt& interrupt) {
  const wire::BrickInfo question{wire::header_of(wire::kBrickInfo), 0};
  std::vector<std::byte> answer(sizeof(wire::BrickInfoResponse));
  if (const int error = ask(question, answer, interrupt); error != 0) return tl::unexpected(error);
  const auto info = wire::decode_brick_info(answer);
  if (!info) return tl::unexpected(EPROTO);
  return *info;
}

int RemoteBrick::change(wire::MessageType type, std::uint64_t id, std::uint32_t count, bool all,
                        const Interrupt& interrupt) {
  wire::BrickRange range;
  range.header = wire::header_of(type);
  range.id = id;
  range.count = count;
  range.flags = all ? std::uint32_t{wire::kAllocAll} : 0U;
  return order(range, interrupt);
}

int RemoteBrick::alloc(std::uint64_t id, std::uint32_t count, bool all,
                       const Interrupt& interrupt) {
  return change(wire::kBrickAlloc, id, count, all, interrupt);
}

int RemoteBrick::free(std::uint64_t id, std::uint32_t count, bool all, const Interrupt& interrupt) {
  return change(wire::kBrickFree, id, count, all, interrupt);
}

/// One at a time, so that all earlier ones have ended when the next is numbered.
tl::expected<std::vector<MappedBlock>, int> RemoteBrick::map(std::uint64_t id, std::uint32_t count,
                                                             std::uint32_t flags,
                                                             const Interrupt& interrupt) {
  if (count == 0 || count > wire::kMaxBrickMaps) return tl::unexpected(EINVAL);
  const std::lock_guard alone{mapping_};
  const auto path = this->path();
  wire::BrickMap question;
  question.header = wire::header_of(wire::kBrickMap);
  question.id = id;
  question.count = count;
  question.flags = flags;
  question.path = path->uuid();
  question.number = ++maps_;
  question.settled = maps_;
  std::vector<std::byte> answer(sizeof(wire::BrickMapResponse) + count * sizeof(wire::MapEntry));
  if (const int error = ask(question, answer, interrupt); error != 0) return tl::unexpected(error);
  const auto entries = wire::decode_brick_maps(answer, question);
  if (!entries) return tl::unexpected(EPROTO);
  std::vector<MappedBlock> blocks;
  for (const wire::MapEntry& entry : *entries) {
    blocks.push_back({entry.id, entry.generation, {entry.address, entry.key}, entry.flags, path});
  }
  return blocks;
}

int RemoteBrick::unmap(const MappedBlock& block, bool drop, const Interrupt& interrupt) {
  wire::BrickUnmap message;
  message.header = wire::header_of(wire::kBrickUnmap);
  message.id = block.id;
  message.count = 1;
  message.flags = drop ? std::uint32_t{wire::kUnmapDrop} : 0U;
  message.generation = block.generation;
  return order(message, interrupt);
}

tl::expected<std::vector<wire::BrickExtent>, int> RemoteBrick::list(wire::BrickListing what,
                                                                    const Interrupt& interrupt) {
  std::vector<wire::BrickExtent> all;
  wire::BrickList question;
  question.header = wire::header_of(wire::kBrickList);
  question.what = static_cast<std::uint32_t>(what);
  std::vector<std::byte> answer(std::min<std::size_t>(kListRoom, client().limits().max_io_size));
  for (;;) {
    if (const int error = ask(question, answer, interrupt); error != 0) {
      return tl::unexpected(error);
    }
    const auto page = wire::decode_brick_extents(answer, question.first);
    if (!page) return tl::unexpected(EPROTO);
    if (page->extents.empty()) return all;
    all.insert(all.end(), page->extents.begin(), page->extents.end());
    const wire::BrickExtent& last = all.back();
    const std::uint64_t end = last.id + last.blocks * wire::kBrickBlock;
    if (end == 0) return all;  // the last block that there can be
    question.first = end;
  }
}

int RemoteBrick::sync(std::span<const wire::SyncRange> ranges, const Interrupt& interrupt) {
  if (ranges.size() > wire::kMaxSyncRanges) return E2BIG;
  wire::BrickSync message;
  message.header = wire::header_of(wire::kBrickSync);
  message.count = static_cast<std::uint32_t>(ranges.size());
  const auto data = wire::encode_sync_ranges(ranges);
  ControlOperation operation{device_->handle(), message, ControlOperation::Data{data}};
  return client().run(operation, interrupt);
}

// ---- One-sided ---------------------------------------------------------------------------------

int RemoteBrick::read(const MappedBlock& block, std::uint64_t offset, rtrs::MutableBytes into,
                      const Interrupt& interrupt) {
  if (!is_inside(offset, into.size())) return EINVAL;
  if ((block.rights & wire::kMapRead) == 0) return EACCES;
  return block.path->read(at(block, offset), into, interrupt);
}

int RemoteBrick::write(const MappedBlock& block, std::uint64_t offset, rtrs::ConstBytes data,
                       const Interrupt& interrupt) {
  if (!is_inside(offset, data.size())) return EINVAL;
  if ((block.rights & wire::kMapWrite) == 0) return EACCES;
  return block.path->write(at(block, offset), data, interrupt);
}

int RemoteBrick::settle(const MappedBlock& block, const Interrupt& interrupt) {
  return block.path->settle(block.where, interrupt);
}

int RemoteBrick::write_settled(const MappedBlock& block, std::uint64_t offset,
                               rtrs::ConstBytes data, const Interrupt& interrupt) {
  constexpr std::uint32_t kBoth = wire::kMapRead | wire::kMapWrite;
  if (!is_inside(offset, data.size())) return EINVAL;
  if ((block.rights & kBoth) != kBoth) return EACCES;
  return block.path->write_settled(at(block, offset), data, interrupt);
}

}  // namespace rnbd
