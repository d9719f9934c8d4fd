// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/catalogue.hpp"

#include <cerrno>
#include <utility>

#include "bridge/server/opening.hpp"

namespace rnbd {

ExportCatalogue::ExportCatalogue(CatalogueOptions options)
    : options_{std::move(options)},
      reservations_{mutex_, options_.reservations, options_.log},
      storages_{mutex_, options_, reservations_},
      files_{mutex_, options_, storages_, reservations_} {
  if (!options_.open) options_.open = open_backend;
}

ExportCatalogue::~ExportCatalogue() = default;

tl::expected<Lease, int> ExportCatalogue::open_named(std::string_view name, const Access& access) {
  std::unique_lock lock{mutex_};
  const auto found = named_.find(name);
  if (found == named_.end()) return tl::unexpected(ENOENT);
  std::shared_ptr<Storage> storage = found->second.storage;
  const Geometry geometry = found->second.geometry;
  lock.unlock();
  if (storage == nullptr) return tl::unexpected(why_not_open(name));
  return storages_.lease(std::move(storage), geometry, access);
}

const WriterCount* ExportCatalogue::writers(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  const auto found = named_.find(name);
  const bool open = found != named_.end() && found->second.storage != nullptr;
  return open ? found->second.storage->writers() : nullptr;
}

std::optional<wire::WhoAnswer> ExportCatalogue::who_has(std::string_view name,
                                                        std::uint64_t features) const {
  const std::lock_guard lock{mutex_};
  const auto found = named_.find(name);
  if (found == named_.end() || found->second.storage == nullptr) return std::nullopt;
  const Storage& storage = *found->second.storage;
  std::string closed = storage.closed_to(features, name);
  const bool used = storage.writers()->anybody();
  const std::string user = used ? reservations_.in_words(storage.writers()) : "";
  if (closed.empty()) return wire::WhoAnswer{user};
  return wire::WhoAnswer{std::move(closed) + (used ? "; " + user : ""), true};
}

// ---- Permission
// -----------------------------------------------------------------------------------

bool ExportCatalogue::has(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  return named_.find(name) != named_.end();
}

Permission ExportCatalogue::permission(std::string_view name, const User& user) const {
  const std::lock_guard lock{mutex_};
  return permission_of(rights_of(name), user);
}

bool ExportCatalogue::has_rights(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  return rights_of(name).given();
}

const Rights& ExportCatalogue::rights_of(std::string_view name) const {
  const auto found = named_.find(name);
  return found != named_.end() ? found->second.specification.rights : search_rights_;
}

void ExportCatalogue::set_search_rights(Rights rights) {
  const std::lock_guard lock{mutex_};
  search_rights_ = std::move(rights);
}

void ExportCatalogue::set_directions(Directions directions) {
  const std::lock_guard lock{mutex_};
  directions_ = std::move(directions);
}

Directions ExportCatalogue::directions() const {
  const std::lock_guard lock{mutex_};
  return directions_;
}

std::string ExportCatalogue::referral_of(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  for (const Referral& each : directions_.referrals) {
    if (is_same_file_name(each.name, name)) return each.uri;
  }
  return "";
}

std::vector<wire::ExportName> ExportCatalogue::list(const User* user) const {
  std::vector<wire::ExportName> names;
  const std::lock_guard lock{mutex_};
  names.reserve(named_.size());
  for (const auto& [name, entry] : named_) {
    const Rights& rights = entry.specification.rights;
    if (entry.specification.hidden) continue;
    if (user != nullptr && permission_of(rights, *user) == Permission::none) continue;
    names.push_back({name, entry.specification.description});
    if (entry.storage == nullptr || !entry.storage->writers()->anybody()) continue;
    std::string& about = names.back().description;
    about += about.empty() ? "in use" : " (in use)";
  }
  return names;
}

std::vector<wire::DirectoryEntry> ExportCatalogue::directory(const User* user,
                                                             std::uint32_t kinds) const {
  std::vector<wire::DirectoryEntry> entries;
  const std::lock_guard lock{mutex_};
  entries.reserve(named_.size());
  for (const auto& [name, named] : named_) {
    const Permission permission =
        user == nullptr ? Permission::write : permission_of(named.specification.rights, *user);
    if (permission == Permission::none || named.specification.hidden) continue;
    wire::DirectoryEntry& entry = entries.emplace_back();
    entry.name = name;
    entry.description = named.specification.description;
    entry.waiting = named.storage == nullptr;
    entry.may_write = permission == Permission::write && !named.specification.read_only;
    if (entry.waiting) continue;
    Geometry now = named.geometry;
    grow(now, named.storage->backend().present_size());
    entry.size = now.size;
    entry.uuid = now.uuid;
    entry.may_write = entry.may_write && !now.read_only;
    entry.in_use = named.storage->writers()->anybody();
  }
  const bool may_open_files =
      files_.are_served() &&
      (user == nullptr || permission_of(search_rights_, *user) != Permission::none);
  const bool may_open = !entries.empty() || may_open_files;
  if ((kinds & wire::kDirectoryExports) == 0) entries.clear();
  add_directions(user, may_open, kinds, entries);
  return entries;
}

/// With the lock held.
void ExportCatalogue::add_directions(const User* user, bool may_open, std::uint32_t kinds,
                                     std::vector<wire::DirectoryEntry>& entries) const {
  for (const Referral& each : directions_.referrals) {
    const bool may = user == nullptr || permission_of(each.rights, *user) != Permission::none;
    if ((kinds & wire::kDirectoryReferrals) == 0 || !may) continue;
    wire::DirectoryEntry& entry = entries.emplace_back();
    entry.name = each.name;
    entry.description = each.uri;
    entry.kind = wire::DirectoryKind::referral;
  }
  if ((kinds & wire::kDirectoryPaths) == 0 || !may_open) return;
  for (const std::string& path : directions_.paths) {
    wire::DirectoryEntry& entry = entries.emplace_back();
    entry.name = path;
    entry.kind = wire::DirectoryKind::path;
  }
}

}  // namespace rnbd
