// SPDX-License-Identifier: BSD-3-Clause
// The C interface.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "bridge/client/session.hpp"
#include "bridge/librnbd/handle.hpp"
#include "rdma/library/gate.hpp"
#include "rdma/library/options.hpp"
#include "rdma/printable.hpp"

using rnbd::Failure;
using rnbd::library::Attachment;
using rnbd::library::Handle;
using rtrs::library::NoCancellation;
using rtrs::library::NoSignals;

struct rnbd_disk final : Handle {
  using Handle::Handle;
};

namespace {

constexpr int kForked = RNBD_FORKED;
static_assert(kForked == ECHILD);

rnbd_disk* refuse(const Failure& failure, rnbd_error* error) {
  if (error != nullptr) {
    const std::string line = rtrs::on_one_line(failure.text);
    const std::size_t length = std::min(line.size(), sizeof(error->text) - 1);
    error->code = failure.error;
    std::memcpy(error->text, line.data(), length);
    error->text[length] = '\0';
  }
  errno = failure.error;
  return nullptr;
}

/// No exception may pass the C interface.
Failure failure_of(const std::exception& exception) {
  const bool memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr;
  return {memory ? ENOMEM : EAGAIN, exception.what()};
}

int minus_one(int error) {
  errno = error;
  return -1;
}

/// The answer of a call that may have a failure of the system instead, as an errno.
template <class Call>
int answer_of(Call call, int (*refused)(int)) {
  const NoCancellation no_cancellation;
  try {
    return call();
  } catch (const std::exception& exception) {
    return refused(failure_of(exception).error);
  }
}
int as_it_is(int error) { return error; }

/// 0, or the errno of a disk that cannot be used.
int refusal_of(const rnbd_disk* disk) {
  if (disk == nullptr) return EINVAL;
  return disk->left_behind() ? RNBD_FORKED : 0;
}

/// Opens a disk with a lane of its own. `attach` makes or has the attachment.
template <class Attach>
rnbd_disk* open(Attach attach, rnbd_error* error) {
  const NoSignals no_signals;
  const NoCancellation no_cancellation;
  try {
    auto attachment = attach();
    if (!attachment) return refuse(attachment.error(), error);
    auto place = (*attachment)->open();
    if (!place) return refuse(place.error(), error);
    return new rnbd_disk{*std::move(place)};
  } catch (const std::exception& exception) {
    return refuse(failure_of(exception), error);
  }
}

std::uint32_t abilities_of(const rnbd::Disk& disk) {
  const rnbd::DeviceGeometry& geometry = disk.geometry();
  std::uint32_t abilities = 0;
  if (geometry.can_flush) abilities |= RNBD_CAN_FLUSH;
  if (geometry.rotational) abilities |= RNBD_IS_ROTATIONAL;
  if (disk.read_only()) return abilities;
  abilities |= RNBD_CAN_CHANGE;
  if (geometry.can_fua) abilities |= RNBD_CAN_FUA;
  if (geometry.max_discard != 0) abilities |= RNBD_CAN_DISCARD;
  if (geometry.max_write_zeroes != 0) abilities |= RNBD_CAN_ZERO;
  if (geometry.fast_zero) abilities |= RNBD_CAN_ZERO_FAST;
  return abilities;
}

}  // namespace

const char* rnbd_version(void) { return RNBDKIT_VERSION; }

const char* rnbd_strerror(int error) {
  if (error == RNBD_FORKED) return "the disk belongs to the parent of this process: open it again";
  return rnbd::describe_error(error);
}

rnbd_disk* rnbd_open(const char* uri, const rnbd_options* options, rnbd_error* error) {
  return open(
      [&]() -> tl::expected<std::shared_ptr<Attachment>, Failure> {
        auto settings = rnbd::library::read_settings(uri, options);
        if (!settings) return tl::unexpected(settings.error());
        return Attachment::make(*std::move(settings));
      },
      error);
}

rnbd_disk* rnbd_open_beside(rnbd_disk* disk, rnbd_error* error) {
  if (const int refused = refusal_of(disk)) return refuse({refused, rnbd_strerror(refused)}, error);
  return open(
      [&]() -> tl::expected<std::shared_ptr<Attachment>, Failure> {
        return disk->attachment().shared_from_this();
      },
      error);
}

void rnbd_close(rnbd_disk* disk) {
  if (disk == nullptr || disk->left_behind()) return;
  const NoCancellation no_cancellation;
  delete disk;
}

int rnbd_describe(rnbd_disk* disk, rnbd_info* info) {
  if (const int refused = refusal_of(disk)) return refused;
  if (info == nullptr || info->size < sizeof(info->size)) return EINVAL;
  const rnbd::DeviceGeometry& geometry = disk->disk().geometry();
  rnbd_info known{};
  known.size = info->size;
  known.bytes = geometry.size;
  known.block = geometry.block;
  known.preferred = rnbd::block_sizes(geometry).preferred;
  known.max_request = geometry.max_io;
  known.abilities = abilities_of(disk->disk());
  known.depth = disk->attachment().depth();
  std::memcpy(known.uuid, &geometry.export_uuid, sizeof(known.uuid));
  const std::string& name = disk->disk().name();
  std::memcpy(known.name, name.data(), std::min(name.size(), sizeof(known.name) - 1));
  const std::size_t size = info->size;
  std::memcpy(info, &known, std::min(size, sizeof(known)));
  // Members that only a newer caller knows have their defaults.
  if (size > sizeof(known))
    std::memset(reinterpret_cast<char*>(info) + sizeof(known), 0, size - sizeof(known));
  return 0;
}

int rnbd_submit(rnbd_disk* disk, const rnbd_request* requests, int count) {
  if (const int refused = refusal_of(disk)) return minus_one(refused);
  if (count < 0 || (requests == nullptr && count != 0)) return minus_one(EINVAL);
  if (count == 0) return 0;
  if (disk->is_full()) return minus_one(EAGAIN);
  return answer_of(
      [&] {
        return static_cast<int>(disk->submit({requests, static_cast<std::size_t>(count)}));
      },
      minus_one);
}

int rnbd_reap(rnbd_disk* disk, rnbd_end* ends, int count, int timeout_ms) {
  if (const int refused = refusal_of(disk)) return minus_one(refused);
  if (count < 0 || (ends == nullptr && count != 0)) return minus_one(EINVAL);
  return answer_of(
      [&] {
        return static_cast<int>(disk->reap({ends, static_cast<std::size_t>(count)}, timeout_ms));
      },
      minus_one);
}

int rnbd_run(rnbd_disk* disk, const rnbd_request* request) {
  if (const int refused = refusal_of(disk)) return refused;
  if (request == nullptr) return EINVAL;
  return answer_of([&] { return disk->run_alone(*request); }, as_it_is);
}

int rnbd_fd(rnbd_disk* disk) {
  if (const int refused = refusal_of(disk)) return minus_one(refused);
  return answer_of([&] { return disk->descriptor(); }, minus_one);
}

unsigned rnbd_pending(rnbd_disk* disk) { return refusal_of(disk) == 0 ? disk->pending() : 0; }
