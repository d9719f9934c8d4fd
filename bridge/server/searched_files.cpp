// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/searched_files.hpp"

#include <cerrno>
#include <thread>
#include <utility>

#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

/// Between two looks at a storage that is in use.
constexpr auto kRetry = std::chrono::milliseconds{50};

}  // namespace

SearchedFiles::SearchedFiles(std::mutex& catalogue, const CatalogueOptions& options,
                             StorageTable& storages, ReservationBook& reservations)
    : mutex_{catalogue}, options_{options}, storages_{storages}, reservations_{reservations} {
  if (options_.patience > rtrs::Duration::zero()) {
    impatient_from_ = std::chrono::steady_clock::now() + options_.patience;
  }
}

// ---- The directory ------------------------------------------------------------------------------

tl::expected<void, Failure> SearchedFiles::set(const std::string& directory) {
  directory_ = directory;
  const auto opened = open_path();
  const bool final = !opened && (opened.error().error == EINVAL || opened.error().error == ENOTDIR);
  if (final) return opened;
  return {};
}

tl::expected<void, Failure> SearchedFiles::open_path() {
  auto found = SearchPath::open(directory_);
  const std::lock_guard lock{mutex_};
  trouble_ = found ? "" : found.error().text;
  if (!found) return tl::unexpected(found.error());
  path_ = std::make_shared<const SearchPath>(std::move(*found));
  return {};
}

std::shared_ptr<const SearchPath> SearchedFiles::path() const {
  const std::lock_guard lock{mutex_};
  return path_;
}

std::string SearchedFiles::trouble() const {
  const std::lock_guard lock{mutex_};
  return trouble_;
}

bool SearchedFiles::try_again() {
  const std::string before = trouble();
  if (before.empty()) return false;
  const auto opened = open_path();
  return opened || opened.error().text != before;
}

const std::string& SearchedFiles::owner_for(const std::string& session_name,
                                            const std::string& user) const {
  return SearchPath::is_per_user(directory_) ? user : session_name;
}

std::string SearchedFiles::line_of(std::string_view owner, std::string_view device_name) const {
  const bool own = SearchPath::is_per_owner(directory_);
  return (own ? std::string{owner} + "/" : "") + std::string{device_name};
}

// ---- A file -------------------------------------------------------------------------------------

tl::expected<Lease, Refusal> SearchedFiles::open(std::string_view owner,
                                                 std::string_view device_name,
                                                 const Access& access) {
  if (!are_served()) return tl::unexpected(Failure{ENOENT, "there is no such export"});
  const auto directory = path();
  if (directory == nullptr) {
    return tl::unexpected(Failure{EAGAIN, in_quotes(device_name) + ": " + trouble()});
  }
  const auto file = directory->find(owner, device_name);
  if (!file) return tl::unexpected(file.error());
  bool told = false;
  while (true) {
    auto leased = lease_found(*file, device_name, access);
    if (leased || !wait_for(leased.error(), told)) return leased;
  }
}

tl::expected<Lease, Refusal> SearchedFiles::lease_found(const FoundFile& file,
                                                        std::string_view device_name,
                                                        const Access& access) {
  const auto mutex = storages_.lock_of(file.identity);
  const std::lock_guard one_at_a_time{*mutex};
  const bool writable = access.mode != wire::AccessMode::read_only;
  auto storage = open_found(file, device_name, writable);
  if (!storage) {
    Failure failure = storage.error();
    const bool denied = failure.error == EACCES || failure.error == EPERM;
    // A file that is only readable is reported as such. A file that is not readable counts as
    // missing.
    if (denied) failure.error = writable && open_found(file, device_name, false) ? EROFS : ENOENT;
    return tl::unexpected(failure);
  }
  const Geometry geometry = (*storage)->geometry();
  const WriterCount* writers = (*storage)->writers();
  auto leased = storages_.lease(std::move(*storage), geometry, access);
  if (!leased) {
    const std::string why =
        leased.error() == EPERM ? reservations_.who_writes(writers) : "it is read-only";
    return tl::unexpected(
        Refusal{Failure{leased.error(), in_quotes(device_name) + ": " + why}, writers});
  }
  return std::move(*leased);
}

tl::expected<std::shared_ptr<Storage>, Failure> SearchedFiles::open_found(
    const FoundFile& file, std::string_view device_name, bool writable) {
  if (auto storage = storages_.already_open(file.identity, writable)) return storage;
  BackendOptions options = storages_.backend_options(!writable);
  // As at a Linux server, a reader neither keeps writers away nor waits for them.
  options.lock = writable;
  // Opens it through the descriptor, so that it is the file that was found, even if the name leads
  // elsewhere now.
  const std::string path = "/proc/self/fd/" + std::to_string(file.fd.get());
  auto opened = storages_.open(path, options, file.identity, std::string{device_name});
  if (!opened) {
    std::string& text = opened.error().text;  // the reader knows the name, not the descriptor
    for (auto at = text.find(path); at != std::string::npos; at = text.find(path))
      text.replace(at, path.size(), in_quotes(device_name));
  }
  return opened;
}

bool SearchedFiles::wait_for(const Failure& failure, bool& told) const {
  const bool worth_it = failure.error == EBUSY && options_.patience > rtrs::Duration::zero() &&
                        std::chrono::steady_clock::now() < impatient_from_;
  if (!worth_it) return false;
  if (!std::exchange(told, true) && options_.log) {
    options_.log(rtrs::LogLevel::warning, failure.text + "; waiting for it");
  }
  std::this_thread::sleep_for(kRetry);
  return true;
}

void SearchedFiles::search_in_vain(std::string_view owner, std::string_view device_name) const {
  if (const auto directory = path()) (void)directory->find(owner, device_name);
}

}  // namespace rnbd
