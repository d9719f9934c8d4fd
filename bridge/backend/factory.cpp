// Which backends there are. A new one adds one line to the list.
#include <cerrno>

#include "bridge/backend/backend.hpp"
#include "bridge/backend/file.hpp"
#include "bridge/backend/memory.hpp"
#include "bridge/backend/null.hpp"
#include "bridge/backend/specification.hpp"

namespace rnbd {

namespace {

using Opener = tl::expected<std::unique_ptr<Backend>, Failure> (*)(const std::string& rest,
                                                                   const BackendOptions& options);

struct Kind {
  std::string_view prefix;
  Opener open;  ///< gets what stands behind the prefix
};

constexpr Kind kKinds[] = {
    {"memory:", open_memory},
    {"null:", open_null},
    {"file:", open_file},
};

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_backend(const std::string& specification,
                                                             const BackendOptions& options) {
  // A name that a client chose is a path and nothing else.
  if (!options.beneath.empty()) return open_file(specification, options);
  for (const Kind& kind : kKinds) {
    std::string_view rest = specification;
    if (strip_prefix(rest, kind.prefix)) return kind.open(std::string{rest}, options);
  }
  return open_file(specification, options);
}

}  // namespace rnbd
