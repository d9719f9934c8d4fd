// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/answer.hpp"

#include <cerrno>
#include <cstring>

namespace rnbd {
namespace {

/// Bits that the reply has for an errno.
constexpr int kMaxErrno = 511;

}  // namespace

void finish(rtrs::ServerRequest& request, int error) {
  request.finish(error < 0 || error > kMaxErrno ? EIO : error);
}

void finish_with(rtrs::ServerRequest& request, wire::ConstBytes bytes) {
  if (!request.is_read || request.data.size() < bytes.size()) return finish(request, EINVAL);
  std::memcpy(request.data.data(), bytes.data(), bytes.size());
  std::memset(request.data.data() + bytes.size(), 0, request.data.size() - bytes.size());
  finish(request, 0);
}

}  // namespace rnbd
