// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/mirror/vote_backend.hpp"

#include <cerrno>

#include "bridge/protocol/mirror_messages.hpp"

namespace rnbd::mirror {
namespace {

class VoteQueue final : public BackendQueue {
 public:
  void submit(BackendRequest& request) override {
    request.done(request, request.operation == BackendOperation::flush ? 0 : EINVAL);
  }
};

class VoteBackend final : public Backend {
 public:
  VoteBackend() {
    info_.read_only = true;
    info_.volatile_cache = false;
    info_.outlives_server = true;
    info_.uuid = wire::kVotesUuid;
  }

  const BackendInfo& info() const override { return info_; }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* /*reactor*/) override {
    return std::make_unique<VoteQueue>();
  }

 private:
  BackendInfo info_;
};

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_votes() {
  return std::make_unique<VoteBackend>();
}

}  // namespace rnbd::mirror
