// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/null.hpp"

#include <cerrno>
#include <cstring>

#include "bridge/backend/specification.hpp"

namespace rnbd {

namespace {

class NullQueue final : public BackendQueue {
 public:
  explicit NullQueue(bool read_only) : read_only_{read_only} {}

  void submit(BackendRequest& request) override {
    int error = 0;
    switch (request.operation) {
      case BackendOperation::read:
        std::memset(request.data, 0, request.length);
        break;
      case BackendOperation::extents:
        request.extents->push_back({request.length, /*hole=*/true, /*zero=*/true});
        break;
      case BackendOperation::write:
      case BackendOperation::discard:
      case BackendOperation::write_zeroes:
        if (read_only_) error = EROFS;
        break;
      case BackendOperation::flush:
      case BackendOperation::cache:
        break;
    }
    request.done(request, error);
  }

 private:
  bool read_only_;
};

class NullBackend final : public Backend {
 public:
  NullBackend(std::uint64_t size, bool read_only) {
    info_.size = size;
    info_.read_only = read_only;
    info_.can_discard = info_.can_write_zeroes = info_.can_fast_zero = true;
    info_.can_extents = info_.can_fua = true;
    info_.volatile_cache = false;
    info_.discard_granularity = info_.physical_block;
    // Every null device of a size holds the same blocks.
    info_.outlives_server = false;
    std::memcpy(info_.uuid.data(), "rnbdnull", 8);
    std::memcpy(info_.uuid.data() + 8, &size, sizeof size);
  }

  const BackendInfo& info() const override { return info_; }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor*) override {
    return std::make_unique<NullQueue>(info_.read_only);
  }

 private:
  BackendInfo info_;
};

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_null(const std::string& size,
                                                          const BackendOptions& options) {
  const auto bytes = parse_size(size);
  if (!bytes) return bad_specification(EINVAL, "null:" + size, bytes.error().text);
  if (*bytes == 0) {
    return bad_specification(EINVAL, "null:" + size, "a size is missing, like null:1G");
  }
  return std::make_unique<NullBackend>(*bytes, options.read_only);
}

}  // namespace rnbd
