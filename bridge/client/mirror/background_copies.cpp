// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/background_copies.hpp"

#include <algorithm>

namespace rnbd::mirror {
namespace {

std::uint64_t bytes_of(const Range& range) { return (range.end - range.begin) * wire::kSectorSize; }

}  // namespace

void BackgroundCopies::begin(const Command& command, Clock::time_point now) {
  copies_.try_emplace(command.operation, Copy{.began = now, .range = command.range});
}

void BackgroundCopies::lend(const Command& command, Task& task) {
  auto& memory = copies_.at(command.operation).memory;
  Transfer& transfer = task.transfer;
  transfer = {.offset = command.range.begin * wire::kSectorSize, .length = bytes_of(command.range)};
  if (memory == nullptr) memory = std::make_shared<std::vector<std::byte>>(transfer.length);
  task.of = memory;
  if (command.order == Order::read) {
    transfer.into = memory->data();
    return;
  }
  const bool zeroes = only_zeroes(*memory);
  transfer.operation = zeroes ? wire::IoOperation::write_zeroes : wire::IoOperation::write;
  transfer.from = zeroes ? nullptr : memory->data();
  transfer.copy = command.order == Order::copy;
}

void BackgroundCopies::done(std::uint64_t operation, bool waiting, Clock::time_point now) {
  constexpr int kTimesAsLong = 3;
  constexpr std::chrono::milliseconds kRecent{100};
  const auto ended = copies_.extract(operation);
  if (!ended) return;
  const Copy& copy = ended.mapped();
  const auto took = now - copy.began;
  Clock::duration pause{};
  if (waiting || now - last_request_ < kRecent) pause = kTimesAsLong * took;
  if (rate_ != 0) {
    const std::chrono::duration<double> due{static_cast<double>(bytes_of(copy.range)) /
                                            static_cast<double>(rate_)};
    pause = std::max(pause, std::chrono::duration_cast<Clock::duration>(due) - took);
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
