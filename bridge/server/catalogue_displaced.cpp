// SPDX-License-Identifier: BSD-3-Clause
// Exports whose path leads to other storage than the one that clients have open.
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "bridge/server/catalogue.hpp"

namespace rnbd {
namespace {

constexpr char kHowToSave[] =
    ": stop those who write, copy the export while they have it open (nbdcopy), and put the copy "
    "there";

/// Asks each file system once, however many exports it has.
class Spaces {
 public:
  /// None: it is no file, or nobody can tell.
  std::optional<StorageSpace> at(const std::string& path, const struct stat& file) {
    if (!S_ISREG(file.st_mode)) return std::nullopt;
    const auto [known, is_new] = systems_.try_emplace(file.st_dev);
    struct statvfs& system = known->second;
    if (is_new && ::statvfs(path.c_str(), &system) != 0) system.f_blocks = 0;
    if (system.f_blocks == 0) return std::nullopt;
    constexpr std::uint64_t kUnit = 512;  ///< of st_blocks
    const auto size = static_cast<std::uint64_t>(file.st_size);
    const std::uint64_t allocated = static_cast<std::uint64_t>(file.st_blocks) * kUnit;
    return StorageSpace{.unallocated = size - std::min(size, allocated),
                        .free = std::uint64_t{system.f_bavail} * system.f_frsize,
                        .whole = std::uint64_t{system.f_blocks} * system.f_frsize};
  }

 private:
  std::map<dev_t, struct statvfs> systems_;
};

}  // namespace

struct ExportCatalogue::PathLook {
  std::string name;
  std::string path;
  const Storage* storage;
  FileIdentity open;
  bool read_only;
};

/// One system call for an export that is in order.
std::vector<ExportStatus> ExportCatalogue::look_at_paths() {
  std::vector<ExportStatus> displaced;
  Spaces spaces;
  for (const PathLook& look : next_looks()) {
    struct stat file {};
    PathLeads leads = PathLeads::to_it;
    if (::stat(look.path.c_str(), &file) != 0) {
      leads = errno == ENOENT || errno == ENOTDIR ? PathLeads::nowhere : PathLeads::unknown;
    } else if (FileIdentity there; !identify(file, there) || there != look.open) {
      leads = PathLeads::elsewhere;
    }
    const bool may_grow = leads == PathLeads::to_it && !look.read_only;
    const auto space = may_grow ? spaces.at(look.path, file) : std::nullopt;
    const std::lock_guard lock{mutex_};
    const auto found = named_.find(look.name);
    if (found == named_.end() || found->second.storage.get() != look.storage) continue;
    found->second.path_leads = leads;
    found->second.space = space;
    if (leads == PathLeads::to_it) continue;
    std::string why = displacement_of(found->second);
    if (why.empty()) continue;
    ExportStatus& status = displaced.emplace_back();
    status.name = look.name;
    status.read_only = look.read_only;
    status.displaced = std::move(why);
  }
  return displaced;
}

/// All that clients have open, or that are displaced, and some others in turn.
std::vector<ExportCatalogue::PathLook> ExportCatalogue::next_looks() {
  std::vector<PathLook> looks;
  std::size_t unused = 0;
  const std::lock_guard lock{mutex_};
  auto next = named_.upper_bound(looked_up_to_);
  for (std::size_t left = named_.size(); left > 0; --left, ++next) {
    if (next == named_.end()) next = named_.begin();
    const auto& [name, entry] = *next;
    if (entry.storage == nullptr || !entry.storage->identity_) continue;
    const bool in_order =
        entry.path_leads == PathLeads::to_it || entry.path_leads == PathLeads::unknown;
    if (entry.storage->leases_ == 0 && in_order) {
      if (unused == kUnusedAtOnce) continue;
      ++unused;
      looked_up_to_ = name;
    }
    const auto path = path_of(entry.specification.storage);
    if (!path) continue;
    looks.push_back(
        {name, *path, entry.storage.get(), *entry.storage->identity_, entry.geometry.read_only});
  }
  return looks;
}

void ExportCatalogue::look_at_devices() const {
  const std::lock_guard lock{mutex_};
  for (const auto& [name, entry] : named_) {
    if (entry.storage == nullptr) continue;
    const auto& file = entry.storage->identity_;
    if (!file || file->block_device) (void)entry.storage->backend().present_size();
  }
}

/// With the lock held, as the next.
bool ExportCatalogue::is_displaced(const Named& named) {
  switch (named.storage->backend().whereabouts()) {
    case Whereabouts::gone:
      return false;
    case Whereabouts::unnamed:
      return true;
    case Whereabouts::named:
      break;
  }
  return named.path_leads == PathLeads::elsewhere || named.path_leads == PathLeads::nowhere;
}

/// A replacement that nobody is in the way of is no trouble: the next client gets it.
std::string ExportCatalogue::displacement_of(const Named& named) {
  const Storage& storage = *named.storage;
  const bool nowhere = named.path_leads == PathLeads::nowhere;
  if (!is_displaced(named) || (storage.leases_ == 0 && !nowhere)) return "";
  const std::string path = path_of(named.specification.storage).value_or("");
  if (storage.backend().whereabouts() == Whereabouts::named) {
    return nowhere ? path +
                         " leads nowhere now; its storage is served on, and the next start of "
                         "this server does not find it: put it back there"
                   : path +
                         " leads to other storage now; clients go on with the old one until "
                         "they have closed it, or this server ends: put that back there, or "
                         "let them disconnect and connect again";
  }
  if (nowhere) {
    return "its file " + path +
           " was deleted; it is served on, and all that is in it is gone when this server ends" +
           kHowToSave;
  }
  return "its file " + path + " was " +
         (named.path_leads == PathLeads::elsewhere ? "replaced" : "deleted or replaced") +
         "; clients go on with the old one, and all that is in it is gone once they have closed "
         "it, or this server ends" +
         kHowToSave;
}

std::vector<ExportStatus> ExportCatalogue::displaced_files() const {
  std::vector<ExportStatus> all;
  const std::lock_guard lock{mutex_};
  for (const Storage* const storage : storages_.in_use()) {
    if (storage->permanent() || storage->backend().whereabouts() != Whereabouts::unnamed) continue;
    ExportStatus& status = all.emplace_back();
    status.name = storage->found_as_;
    status.size = storage->backend().present_size();
    status.read_only = storage->geometry().read_only;
    status.displaced = std::string{"its file below the search path was deleted or replaced; "} +
                       "clients go on with the old one, and all that is in it is gone once they "
                       "have closed it, or this server ends" +
                       kHowToSave;
  }
  return all;
}

}  // namespace rnbd
