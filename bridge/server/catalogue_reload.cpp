// SPDX-License-Identifier: BSD-3-Clause
// Adds, changes and removes exports while the server serves the others.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/catalogue.hpp"

namespace rnbd {
namespace {

/// For an attempt to open waiting exports that is in progress; one that takes longer hangs.
constexpr std::chrono::seconds kPatience{5};

}  // namespace

std::vector<std::string> ExportCatalogue::change(CatalogueChange wanted, bool check_only) {
  // By the clock of pthread_mutex_timedlock(3), which Thread Sanitizer follows.
  const std::unique_lock admin{admin_mutex_, std::chrono::system_clock::now() + kPatience};
  if (!admin) {
    return {"an export that waits is being opened, and that hangs; look at its disk or mount"};
  }
  std::vector<std::string> faults;
  std::vector<Added> added;
  // A storage that is open for writing serves readers, too, but not the other way round.
  std::ranges::stable_sort(wanted.add, {}, &ExportSpecification::read_only);
  for (ExportSpecification& each : wanted.add) {
    auto storage = open_for_export(each);
    if (storage) {
      added.push_back({std::move(each), std::move(*storage)});
    } else {
      const bool again = std::ranges::find(wanted.remove, each.name) != wanted.remove.end();
      const bool own = again && (storage.error().error == EEXIST || storage.error().error == EBUSY);
      faults.push_back(each.place + "export " + in_quotes(each.name) + ": " + storage.error().text +
                       (own ? "; remove the export, reload, and add it again" : ""));
    }
  }
  if (!faults.empty() || check_only) return faults;
  for (const Added& each : added) announce(each.specification, *each.storage);
  commit(wanted, std::move(added));
  return {};
}

/// Never blocks, except to close removed storage, which happens without the lock.
void ExportCatalogue::commit(CatalogueChange& wanted, std::vector<Added> added) {
  std::vector<std::shared_ptr<Storage>> gone;
  const std::lock_guard lock{mutex_};
  for (const std::string& name : wanted.remove) {
    auto node = named_.extract(name);
    if (node.empty()) continue;
    node.mapped().removed = true;
    gone.push_back(std::exchange(node.mapped().storage, nullptr));
    removed_.push_back(std::move(node));
    waiting_.erase(name);
  }
  for (Added& each : added) {
    const Geometry geometry =
        geometry_of(each.storage->backend().info(), each.specification.read_only).value();
    const std::string name = each.specification.name;
    Named named;
    named.geometry = geometry;
    named.specification = std::move(each.specification);
    named.storage = std::move(each.storage);
    named.limits->set(named.specification.limits);
    named_.insert_or_assign(name, std::move(named));
  }
  for (ExportSpecification& each : wanted.update) {
    const auto found = named_.find(each.name);
    if (found == named_.end()) continue;
    const auto waiting = waiting_.find(each.name);
    if (waiting != waiting_.end()) waiting->second.specification.read_only = each.read_only;
    if (each.read_only && !found->second.specification.read_only) {
      found->second.specification.read_only = true;
      if (found->second.storage != nullptr) {
        found->second.geometry = geometry_of(found->second.storage->backend().info(), true).value();
      }
    }
    found->second.specification.rights = std::move(each.rights);
    found->second.specification.description = std::move(each.description);
    found->second.specification.limits = each.limits;
    found->second.limits->set(each.limits);
  }
  search_rights_ = std::move(wanted.search_rights);
  directions_ = std::move(wanted.directions);
  for (const std::shared_ptr<Storage>& storage : gone) {
    if (storage != nullptr) storage->replaced_ = true;
  }
  // Another export may have it, too.
  for (const auto& [name, entry] : named_) {
    if (entry.storage != nullptr) entry.storage->replaced_ = false;
  }
}

}  // namespace rnbd
