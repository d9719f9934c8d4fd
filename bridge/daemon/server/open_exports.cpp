// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/open_exports.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <thread>
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/daemon/server/annex.hpp"
#include "bridge/daemon/server/late_exports.hpp"
#include "bridge/daemon/server/sandbox.hpp"
#include "rdma/descriptor_reserve.hpp"

namespace rnbd {
namespace {

/// Descriptors of a server without exports, once it has opened its storage.
int descriptors_of_its_own(const Settings& settings) {
  constexpr int kOfAll = 6, kOfReactor = 4, kOfMetrics = 4;
  const auto listeners = static_cast<int>(settings.listen.size());
  return kOfAll + kOfReactor * static_cast<int>(reactors_of(settings)) + listeners +
         (settings.metrics.empty() ? 0 : kOfMetrics);
}

/// A file takes a descriptor for each reactor and one more. A server that gave its last ones to
/// exports would be ready and refuse every client, or would not even start.
Failure lack_of_descriptors(const std::string& storage, int to_come) {
  if (!rtrs::are_descriptors_for_clients(to_come)) return {};
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return {EMFILE,
          storage + ": of the " + std::to_string(limit.rlim_cur) +
              " descriptors that this server may have the last ones are for itself and "
              "for clients; a file takes 1 and one for each reactor: let the server have more "
              "(LimitNOFILE= of its unit), or give it fewer reactors or exports"};
}

tl::expected<std::unique_ptr<Backend>, Failure> open_in_sandbox(const std::string& storage,
                                                                const BackendOptions& options) {
  for (const DaemonAnnex* annex : daemon_annexes())
    if (annex->open_storage != nullptr && annex->storage == storage) return annex->open_storage();
  auto backend = open_backend(storage, options);
  if (!backend) backend.error().text += sandbox_hint(backend.error().error, storage);
  return backend;
}

}  // namespace

unsigned reactors_of(const Settings& settings) {
  constexpr unsigned kMost = 8;
  return settings.reactors != 0 ? settings.reactors
                                : std::clamp(std::thread::hardware_concurrency(), 1U, kMost);
}

OpenedExports open_exports(const Settings& settings, CatalogueOptions options, int missing) {
  options.open = open_in_sandbox;
  OpenedExports opened;
  opened.to_come = std::make_shared<std::atomic<int>>(descriptors_of_its_own(settings) + missing);
  options.lack = [to_come = opened.to_come](const std::string& storage) {
    return lack_of_descriptors(storage, *to_come);
  };
  options.direct = settings.direct;
  options.queues = reactors_of(settings);
  options.use_uring = !settings.no_uring;
  options.log = log_function();
  opened.catalogue = std::make_unique<ExportCatalogue>(std::move(options));
  std::map<std::size_t, Mistake> mistakes;
  // Storage that is open for writing serves readers, too, but not the other way round.
  for (const bool read_only : {false, true}) {
    for (std::size_t n = 0; n < settings.exports.size(); ++n) {
      const ExportSpecification& specification = settings.exports[n];
      if (specification.read_only != read_only) continue;
      const auto added = opened.catalogue->add(specification);
      if (!added) mistakes[n] = {specification.line, added.error().text};
    }
  }
  for (auto& [n, mistake] : mistakes) opened.mistakes.push_back(std::move(mistake));
  opened.catalogue->set_search_rights(settings.search_rights);
  opened.catalogue->set_directions(settings.directions);
  if (!settings.search_path.empty()) {
    const auto set = opened.catalogue->files().set(settings.search_path);
    if (!set) opened.mistakes.push_back({0, set.error().text});
  }
  return opened;
}

std::string describe(const Settings& settings, const ExportCatalogue& catalogue) {
  std::string text = describe_exports(catalogue);
  for (const ExportSpecification& each : settings.exports)
    if (each.hidden) text += (text.empty() ? "" : ", and ") + each.description;
  if (text.empty() && settings.search_path.empty()) return "nothing but referrals";
  if (settings.search_path.empty()) return text;
  text += (text.empty() ? "" : "; ") + ("what is below " + settings.search_path);
  if (!catalogue.files().trouble().empty()) text += " (waiting for it)";
  return text;
}

}  // namespace rnbd
