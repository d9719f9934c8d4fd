// SPDX-License-Identifier: BSD-3-Clause
// Exports that lose their storage while the server runs: it was taken away, deleted or replaced.
// And those whose storage may have grown at another server.
#include <utility>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/catalogue.hpp"
#include "rdma/log_about.hpp"

namespace rnbd {
namespace {

/// The users of a storage that is gone get errors, even if the present one is open for others.
bool is_in_the_way(const Storage& old, std::size_t leases) {
  return leases > 0 && old.backend().whereabouts() != Whereabouts::gone;
}

const char* news_of(const Storage* old, const Storage& fresh) {
  const auto& uuid = fresh.backend().info().uuid;
  const bool same = old != nullptr && uuid != wire::Uuid{} && uuid == old->backend().info().uuid;
  return same ? "its storage was gone, and is opened anew"
              : "its storage is another one now, which is served from here on";
}

}  // namespace

bool ExportCatalogue::is_stale(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  const auto found = named_.find(name);
  if (found == named_.end()) return false;
  const Named& named = found->second;
  if (named.storage == nullptr) return !named.lost.empty();
  return !is_in_the_way(*named.storage, named.storage->leases_) &&
         (is_displaced(named) || named.storage->backend().whereabouts() == Whereabouts::gone);
}

/// Two at a time would be in each other's way; the caller is in the line of the name.
void ExportCatalogue::renew(std::string_view name) {
  if (!is_stale(name)) return;
  std::unique_lock lock{mutex_};
  const auto found = named_.find(name);
  if (found == named_.end()) return;
  Named& named = found->second;  // stays, also if it is removed
  const ExportSpecification specification = named.specification;
  lock.unlock();
  auto fresh = open_for_export(specification);
  std::shared_ptr<Storage> old;
  const auto say = [&](rtrs::LogLevel level, const char* event, const std::string& what) {
    const rtrs::LogAbout about{{.event = event, .device = name}};
    if (options_.log) options_.log(level, "export " + in_quotes(name) + ": " + what);
  };
  lock.lock();
  old = named.storage;
  const bool taken = named.removed || (old != nullptr && is_in_the_way(*old, old->leases_));
  if (taken) return;  // another caller has opened it meanwhile
  if (fresh) {
    lock.unlock();
    if (*fresh == old) return;
    if (old != nullptr) old->replaced_ = true;
    const std::string news = news_of(old.get(), **fresh);
    serve(named, std::move(*fresh), specification);
    return say(rtrs::LogLevel::warning, "export_replaced", news);
  }
  const bool works = old != nullptr && old->backend().whereabouts() != Whereabouts::gone;
  if (works) return;  // perhaps the only way to its content
  if (old != nullptr) old->replaced_ = true;
  named.storage.reset();
  const bool news = std::exchange(named.lost, fresh.error().text) != fresh.error().text;
  lock.unlock();
  if (news)
    say(rtrs::LogLevel::error, "export_lost", "it has no storage any more: " + fresh.error().text);
}

bool ExportCatalogue::is_size_unsure(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  const auto found = named_.find(name);
  const Storage* const storage = found != named_.end() ? found->second.storage.get() : nullptr;
  if (storage == nullptr || storage->leases_ > 0) return false;
  const DistantSize* const size = storage->backend().distant_size();
  return size != nullptr && size->may_be_asked();
}

void ExportCatalogue::ask_size(std::string_view name) {
  if (!is_size_unsure(name)) return;
  std::unique_lock lock{mutex_};
  const auto found = named_.find(name);
  std::shared_ptr<Storage> storage = found != named_.end() ? found->second.storage : nullptr;
  lock.unlock();
  DistantSize* const distant = storage != nullptr ? storage->backend().distant_size() : nullptr;
  if (distant == nullptr) return;
  const std::uint64_t known = storage->backend().present_size();
  const auto size = distant->ask();
  lock.lock();
  const bool grown = size && storage->leases_ == 0 && distant->take(*size);
  lock.unlock();
  storages_.close(std::move(storage));
  if (!grown || !options_.log) return;
  const rtrs::LogAbout about{{.event = "export_grown", .device = name}};
  options_.log(rtrs::LogLevel::info, "export " + in_quotes(name) + ": it has grown to " +
                                         std::to_string(*size) + " bytes from " +
                                         std::to_string(known));
}

std::string ExportCatalogue::trouble_of(std::string_view name) const {
  const std::lock_guard lock{mutex_};
  const auto found = named_.find(name);
  if (found != named_.end() && !found->second.lost.empty()) return found->second.lost;
  const auto waiting = waiting_.find(name);
  return waiting != waiting_.end() ? waiting->second.why.text : "";
}

}  // namespace rnbd
