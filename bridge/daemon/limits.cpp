// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/limits.hpp"

#include <sys/resource.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "rdma/control_group.hpp"
#include "rdma/descriptor_reserve.hpp"

namespace rnbd {

namespace fs = std::filesystem;

LimitUses limits_of_process() {
  LimitUses limits;
  rlimit files{};
  std::error_code error;
  const fs::directory_iterator open{"/proc/self/fd", error};
  if (!error && getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY) {
    const auto used = std::distance(begin(open), end(open)) - 1;  // the iterator has one itself
    limits.push_back({"LimitNOFILE", static_cast<std::uint64_t>(used),
                      rtrs::descriptors_for_all(files.rlim_cur)});
  }
  const fs::path group = rtrs::control_group();
  const auto tasks = rtrs::number_in(group / "pids.current");
  const auto most = rtrs::number_in(group / "pids.max");
  if (!group.empty() && tasks && most) limits.push_back({"TasksMax", *tasks, *most});
  return limits;
}

void add_limits(Exposition& page, const LimitUses& limits) {
  page.family("limit_used", MetricType::gauge, "How much of the limit is used.");
  for (const LimitUse& each : limits) page.sample({{"limit", each.name}}, each.used);
  page.family("limit", MetricType::gauge,
              "The limit, by the name of its option or of the unit's setting.");
  for (const LimitUse& each : limits) page.sample({{"limit", each.name}}, each.most);
}

Json status_of_limits(const LimitUses& limits) {
  Json all = Json::array();
  for (const LimitUse& each : limits)
    all.push_back({{"limit", each.name}, {"used", each.used}, {"most", each.most}});
  return all;
}

}  // namespace rnbd
