// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/background_copies.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace rnbd::mirror {
namespace {

using Data = std::span<const std::byte>;

std::uint64_t bytes_of(const Range& range) { return (range.end - range.begin) * wire::kSectorSize; }

bool equal(Data one, Data other) { return std::memcmp(one.data(), other.data(), one.size()) == 0; }

/// The part of `data` that is not the same in `others`, in whole blocks. They have one length, and
/// differ.
Data difference(Data data, Data others, std::size_t block) {
  const auto same_at = [&](std::size_t place) {
    const std::size_t size = std::min(block, data.size() - place);
    return equal(data.subspan(place, size), others.subspan(place, size));
  };
  std::size_t begin = 0, last = (data.size() - 1) / block * block;
  while (begin < last && same_at(begin)) begin += block;
  while (last > begin && same_at(last)) last -= block;
  return data.subspan(begin, std::min(last + block, data.size()) - begin);
}

}  // namespace

void BackgroundCopies::begin(const Command& command, Clock::time_point now) {
  const auto [copy, is_new] = copies_.try_emplace(command.operation, Copy{.began = now});
  copy->second.range = command.range;
  if (command.order == Order::read || command.order == Order::pull) copy->second.moves = true;
}

void BackgroundCopies::lend(const Command& command, std::uint32_t block, Task& task) {
  constexpr std::uint32_t kPage = 4096;  // storage takes no room for less
  Copy& copy = copies_.at(command.operation);
  const bool reads = command.order == Order::read;
  const Memory& others = copy.of[command.member];
  Memory& memory = copy.of[reads ? command.member : command.source];
  Transfer& transfer = task.transfer;
  transfer = {.offset = command.range.begin * wire::kSectorSize, .length = bytes_of(command.range)};
  if (memory == nullptr) memory = std::make_shared<std::vector<std::byte>>(transfer.length);
  task.of = memory;
  if (reads) {
    transfer.into = memory->data();
    return;
  }
  const Data data =
      others != nullptr ? difference(*memory, *others, std::max(block, kPage)) : Data{*memory};
  const bool zeroes = only_zeroes(data);
  transfer.operation = zeroes ? wire::IoOperation::write_zeroes : wire::IoOperation::write;
  transfer.offset += static_cast<std::uint64_t>(data.data() - memory->data());
  transfer.length = data.size();
  transfer.from = zeroes ? nullptr : data.data();
  transfer.copy = command.order == Order::copy;
}

void BackgroundCopies::forget(unsigned member) {
  for (auto& [operation, copy] : copies_) copy.of[member].reset();
}

MemberSet BackgroundCopies::same(std::uint64_t operation, MemberSet members,
                                 unsigned source) const {
  const Copy& copy = copies_.at(operation);
  MemberSet same = 0;
  for (unsigned i = 0; i < kMaxMembers; ++i)
    if (has(members, i) && equal(*copy.of[i], *copy.of[source])) same = with(same, i);
  return same;
}

Range BackgroundCopies::differing(std::uint64_t operation, MemberSet members,
                                  unsigned reference) const {
  const Copy& copy = copies_.at(operation);
  Range part{copy.range.end, copy.range.begin};
  for (unsigned i = 0; i < kMaxMembers; ++i) {
    if (!has(members, i)) continue;
    const Data data{*copy.of[i]};
    const Data differs = difference(data, *copy.of[reference], wire::kSectorSize);
    const auto begin = static_cast<std::uint64_t>(differs.data() - data.data());
    part.begin = std::min(part.begin, copy.range.begin + begin / wire::kSectorSize);
    part.end = std::max(part.end, copy.range.begin + (begin + differs.size()) / wire::kSectorSize);
  }
  return part;
}

bool BackgroundCopies::are_requests(bool waiting, Clock::time_point now) const {
  constexpr std::chrono::milliseconds kRecent{100};
  return waiting || now - last_request_ < kRecent;
}

bool BackgroundCopies::may_begin(unsigned under_way, bool waiting, Clock::time_point now) const {
  constexpr unsigned kAtOnce = 4;  // a server takes one more of one client
  if (resume_at_) return false;
  return under_way == 0 || (under_way < kAtOnce && rate_ == 0 && !are_requests(waiting, now));
}

/// Three times as long as the row took, unless copies come to less than the floor by that.
BackgroundCopies::Clock::duration BackgroundCopies::pause_behind_row() {
  constexpr std::uint64_t kFloor = std::uint64_t{8} << 20;  // bytes a second
  constexpr unsigned kPart = 20;                            // or this part of the fastest row
  const Row row = std::exchange(row_, {});
  const std::chrono::duration<double> seconds = std::max(row.took, Clock::duration{1});
  const double bytes = static_cast<double>(row.bytes), moved = static_cast<double>(row.moved);
  if (!row.asks) fastest_ = std::max(fastest_, static_cast<std::uint64_t>(moved / seconds.count()));
  const double floor = static_cast<double>(std::max(kFloor, fastest_ / kPart));
  const std::chrono::duration<double> most{bytes / floor};
  const auto left = std::chrono::duration_cast<Clock::duration>(most) - row.took;
  const int times_as_long = stalled_ ? 1 : 3;
  return std::clamp(left, Clock::duration{}, times_as_long * row.took);
}

void BackgroundCopies::done(std::uint64_t operation, bool waiting, Clock::time_point now) {
  constexpr std::uint64_t kInARow = std::uint64_t{1} << 20;  // bytes
  constexpr std::uint64_t kLeast = kInARow / 4;  // a small one takes as long as that, or longer
  const auto ended = copies_.extract(operation);
  if (!ended) return;
  const Copy& copy = ended.mapped();
  const auto took = now - copy.began;
  Clock::duration pause{};
  if (are_requests(waiting, now)) {
    row_.took += took;
    row_.bytes += copy.moves ? std::max(bytes_of(copy.range), kLeast) : kInARow;
    row_.moved += copy.moves ? bytes_of(copy.range) : 0;
    row_.asks = row_.asks || !copy.moves;
    if (row_.bytes >= kInARow) pause = pause_behind_row();
  } else {
    row_ = {};
  }
  if (rate_ != 0 && copy.moves) {
    const std::chrono::duration<double> due{static_cast<double>(bytes_of(copy.range)) /
                                            static_cast<double>(rate_)};
    due_ = std::max(due_, copy.began) + std::chrono::duration_cast<Clock::duration>(due);
    pause = std::max(pause, due_ - now);
  }
  if (pause > pause.zero()) resume_at_ = now + pause;
}

std::optional<Range> BackgroundCopies::failed(std::uint64_t operation, Clock::time_point now) {
  constexpr std::chrono::seconds kAfterFailure{1};
  const auto ended = copies_.extract(operation);
  if (!ended) return {};
  resume_at_ = now + kAfterFailure;
  return ended.mapped().range;
}

bool BackgroundCopies::resume(Clock::time_point now) {
  if (!resume_at_ || now < *resume_at_) return false;
  resume_at_.reset();
  return true;
}

}  // namespace rnbd::mirror
