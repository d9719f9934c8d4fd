// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/brick/bricks.hpp"

#include <cerrno>
#include <cstdio>
#include <future>
#include <nlohmann/json.hpp>

#include "bridge/backend/brick/service.hpp"
#include "bridge/protocol/brick_messages.hpp"
#include "bridge/server/brick/brick_annex.hpp"

namespace rnbd {
namespace {

using brick::Brick;
using brick::BrickService;

/// Runs of blocks that are told at most: a list for people.
constexpr std::size_t kMostRuns = 1000;

std::string hexadecimal(std::uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(number));
  return text;
}

std::string rights_of(std::uint32_t rights) {
  std::string text;
  if ((rights & brick::kRead) != 0) text += 'r';
  if ((rights & brick::kWrite) != 0) text += 'w';
  return text;
}

Json usage(const std::string& name, const Brick& brick, const BrickService& service) {
  const brick::BrickOptions& options = service.options();
  return {{"export", name},
          {"blocks", options.places},
          {"allocated", brick.allocated()},
          {"memory", options.slots},
          {"in_memory", brick.in_memory()},
          {"mapped", brick.count(brick::Listing::mapped, 0)},
          {"tier", service.has_tier() ? "file" : "none"},
          {"durable", service.has_tier() ? "after SYNC" : "never"}};
}

Json maps_of(const std::string& name, const Brick& brick, const BrickService& service) {
  const auto users = service.users();
  Json maps = Json::array();
  for (const brick::MapReport& map : brick.maps()) {
    const auto user = users.find(map.session);
    maps.push_back({{"export", name},
                    {"session", user == users.end() ? "gone" : user->second},
                    {"block", hexadecimal(map.block << brick::kBlockShift)},
                    {"rights", rights_of(map.rights)},
                    {"state", map.recalled ? "recalled" : "mapped"}});
  }
  return maps;
}

/// Neighbours in one line.
Json blocks_of(const Brick& brick) {
  Json blocks = Json::array();
  std::uint64_t next = 0;
  bool in_memory = false;
  for (const brick::Listed& block : brick.list(brick::Listing::allocated, 0, 0, ~std::size_t{0})) {
    const bool joins = !blocks.empty() && block.block == next && block.in_memory == in_memory;
    if (!joins && blocks.size() == kMostRuns) break;
    if (joins) {
      blocks.back()["blocks"] = blocks.back()["blocks"].get<std::uint64_t>() + 1;
    } else {
      blocks.push_back({{"block", hexadecimal(block.block << brick::kBlockShift)},
                        {"blocks", 1},
                        {"where", block.in_memory ? "memory" : "tier"}});
    }
    next = block.block + 1;
    in_memory = block.in_memory;
  }
  return blocks;
}

/// Looks at a brick on the thread that owns it, and waits for that.
Json look(BrickService& service, const std::function<Json(const Brick&)>& what) {
  std::promise<Json> seen;
  service.run([&](Brick& brick) { seen.set_value(what(brick)); });
  return seen.get_future().get();
}

tl::expected<Json, rtrs::Failure> tell_bricks(const ExportCatalogue& catalogue,
                                              const std::string& wanted) {
  Json answer{{"bricks", Json::array()}, {"maps", Json::array()}};
  for (const auto& brick_export : catalogue.storages()) {
    const std::string& name = brick_export.first;  // lambdas take no bindings before Clang 16
    if (!wanted.empty() && name != wanted) continue;
    BrickService* const found = brick::service_of(brick_export.second->backend());
    if (found == nullptr) continue;
    BrickService& service = *found;
    answer["bricks"].push_back(
        look(service, [&](const Brick& brick) { return usage(name, brick, service); }));
    for (auto& map :
         look(service, [&](const Brick& brick) { return maps_of(name, brick, service); }))
      answer["maps"].push_back(std::move(map));
    if (!wanted.empty()) answer["blocks"] = look(service, blocks_of);
  }
  if (answer["bricks"].empty()) {
    return tl::unexpected(rtrs::Failure{
        ENOENT, wanted.empty() ? "no export is a brick; make one with --export NAME=brick:SIZE"
                               : "there is no brick '" + wanted + "'; `brick` lists them"});
  }
  return answer;
}

/// It waits for the bricks' threads.
std::vector<ControlCommand> commands(const ExportCatalogue& catalogue) {
  return {{"brick", "[EXPORT]",
           "bricks: how full they are, and which session has mapped what; of one its blocks, too",
           [&catalogue](const std::string& argument) { return tell_bricks(catalogue, argument); }}};
}

tl::expected<std::shared_ptr<ServerAnnex>, std::string> open(const AnnexStart&) {
  return std::make_shared<BrickAnnex>();
}

}  // namespace

const DaemonAnnex kBricks{.settings = {},
                          .features = wire::kFeaturePassive | rtrs::wire::kFeatureMemoryPaths,
                          .open = &open,
                          .commands = &commands};

}  // namespace rnbd
