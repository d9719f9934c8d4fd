// SPDX-License-Identifier: BSD-3-Clause
// Exports whose path leads to other storage than the one that clients have open.
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>

#include "bridge/server/catalogue.hpp"

namespace rnbd {
namespace {

constexpr char kHowToSave[] =
    ": stop those who write, copy the export while they have it open (nbdcopy), and put the copy "
    "there";

/// None: it is no file, or nobody can tell.
std::optional<StorageSpace> space_at(const std::string& path) {
  struct stat file {};
  struct statvfs system {};
  if (::stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return std::nullopt;
  if (::statvfs(path.c_str(), &system) != 0 || system.f_blocks == 0) return std::nullopt;
  constexpr std::uint64_t kUnit = 512;  ///< of st_blocks
  const auto size = static_cast<std::uint64_t>(file.st_size);
  const std::uint64_t allocated = static_cast<std::uint64_t>(file.st_blocks) * kUnit;
  return StorageSpace{.unallocated = size - std::min(size, allocated),
                      .free = std::uint64_t{system.f_bavail} * system.f_frsize,
                      .whole = std::uint64_t{system.f_blocks} * system.f_frsize};
}

}  // namespace

ExportCatalogue::PathLeads ExportCatalogue::lead_of(const std::string& path,
                                                    const FileIdentity& open) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    return errno == ENOENT || errno == ENOTDIR ? PathLeads::nowhere : PathLeads::unknown;
  }
  FileIdentity there;
  return identify(status, there) && there == open ? PathLeads::to_it : PathLeads::elsewhere;
}

void ExportCatalogue::look_at_paths() {
  struct Look {
    std::string name;
    std::string path;
    const Storage* storage;
    FileIdentity open;
    bool read_only;
  };
  std::vector<Look> looks;
  {
    const std::lock_guard lock{mutex_};
    for (const auto& [name, entry] : named_) {
      const auto path = path_of(entry.specification.storage);
      if (!path || entry.storage == nullptr || !entry.storage->identity_) continue;
      looks.push_back(
          {name, *path, entry.storage.get(), *entry.storage->identity_, entry.geometry.read_only});
    }
  }
  for (const Look& look : looks) {
    const PathLeads leads = lead_of(look.path, look.open);
    const auto space =
        leads == PathLeads::to_it && !look.read_only ? space_at(look.path) : std::nullopt;
    const std::lock_guard lock{mutex_};
    const auto found = named_.find(look.name);
    if (found == named_.end() || found->second.storage.get() != look.storage) continue;
    found->second.path_leads = leads;
    found->second.space = space;
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
