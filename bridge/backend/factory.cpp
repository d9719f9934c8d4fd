// SPDX-License-Identifier: BSD-3-Clause
// Which backends there are. A new one adds one line to the list.
#include <algorithm>
#include <built_annexes.hpp>
#include <cerrno>

#include "bridge/backend/backend.hpp"
#if RNBDKIT_WITH_BRICK
#include "bridge/backend/brick.hpp"
#endif
#include "bridge/backend/delay.hpp"
#include "bridge/backend/fault.hpp"
#include "bridge/backend/file.hpp"
#include "bridge/backend/memory.hpp"
#include "bridge/backend/nbd.hpp"
#include "bridge/backend/null.hpp"
#include "bridge/backend/rbd.hpp"
#include "bridge/backend/specification.hpp"

namespace rnbd {

namespace {

using Opener = tl::expected<std::unique_ptr<Backend>, Failure> (*)(const std::string& rest,
                                                                   const BackendOptions& options);

struct Kind {
  std::string_view prefix;
  Opener open;               ///< gets the text behind the prefix
  bool with_prefix = false;  ///< gets the prefix, too: it belongs to a URI
  bool shared = false;       ///< see is_shared()
};

constexpr Kind kKinds[] = {
    {"memory:", open_memory},
    {"null:", open_null},
#if RNBDKIT_WITH_BRICK
    {"brick:", open_brick},
#endif
    {"nbd://", open_nbd, /*with_prefix=*/true},
    {"nbds://", open_nbd, /*with_prefix=*/true},
    {"nbd+", open_nbd, /*with_prefix=*/true},
    {"nbds+", open_nbd, /*with_prefix=*/true},
    {"nbd:", open_nbd},
    {.prefix = "rbd:", .open = open_rbd, .shared = true},
    {"fault:", open_fault},
    {"delay:", open_delay},
    {"file:", open_file},
};

}  // namespace

std::optional<std::string> path_of(const std::string& specification) {
  for (const Kind& kind : kKinds) {
    std::string_view rest = specification;
    if (!strip_prefix(rest, kind.prefix)) continue;
    return kind.open == open_file ? std::optional{std::string{rest}} : std::nullopt;
  }
  return specification;
}

bool is_shared(const std::string& specification) {
  return std::ranges::any_of(kKinds, [&](const Kind& kind) {
    return kind.shared && specification.starts_with(kind.prefix);
  });
}

tl::expected<std::unique_ptr<Backend>, Failure> open_backend(const std::string& specification,
                                                             const BackendOptions& options) {
  for (const Kind& kind : kKinds) {
    std::string_view rest = specification;
    if (!strip_prefix(rest, kind.prefix)) continue;
    return kind.open(kind.with_prefix ? specification : std::string{rest}, options);
  }
  return open_file(specification, options);
}

}  // namespace rnbd
