// SPDX-License-Identifier: BSD-3-Clause
// The files below the search path, which clients open by name.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "bridge/server/catalogue_options.hpp"
#include "bridge/server/lease.hpp"
#include "bridge/server/search_path.hpp"
#include "bridge/server/storage_table.hpp"

namespace rnbd {

/// The reason why a file was not opened.
struct Refusal : Failure {
  Refusal(Failure failure, const WriterCount* in_use = nullptr)
      : Failure{std::move(failure)}, writers{in_use} {}
  const WriterCount* writers;  ///< EPERM: the other writers
};

/// Finds files, and opens their storage while somebody uses it.
///
/// Threads: set() before the first session, try_again() one at a time, the rest any. The
/// catalogue's
///          lock guards the path and its trouble. While a file is opened, its lock in the
///          StorageTable is held.
class SearchedFiles {
 public:
  /// `catalogue` is the catalogue's lock.
  SearchedFiles(std::mutex& catalogue, const CatalogueOptions& options, StorageTable& storages,
                ReservationBook& reservations);

  /// Lets clients open files below a directory by name, after the exports that have one. If the
  /// directory is not there, it waits as an export does.
  ///
  /// Errors: EINVAL, ENOTDIR, with the remedy.
  tl::expected<void, Failure> set(const std::string& directory);
  bool are_served() const { return !directory_.empty(); }
  /// The reason for a missing search path; "": it exists, or none was set.
  std::string trouble() const;
  /// Looks again for a directory that is missing. True: there is something to tell.
  bool try_again();

  /// The name of the session's or the user's own directory in the search path.
  const std::string& owner_for(const std::string& session_name, const std::string& user) const;
  /// The line of OpenLines for a file.
  std::string line_of(std::string_view owner, std::string_view device_name) const;
  /// Opens a file below the search path. May block as any file access may.
  ///
  /// Errors: as SearchPath::find(), EAGAIN (the directory is not there yet), EROFS, EPERM, or the
  ///         backend's; the text is for the log.
  tl::expected<Lease, Refusal> open(std::string_view owner, std::string_view device_name,
                                    const Access& access);
  /// Looks for a file and drops the result. So a client without rights, which gets the answer that
  /// there is no such file, gets it after the usual time.
  void search_in_vain(std::string_view owner, std::string_view device_name) const;

 private:
  tl::expected<void, Failure> open_path();
  std::shared_ptr<const SearchPath> path() const;
  bool wait_for(const Failure& failure, bool& told) const;
  tl::expected<std::shared_ptr<Storage>, Failure> open_found(const FoundFile& file,
                                                             std::string_view device_name,
                                                             bool writable);
  tl::expected<Lease, Refusal> lease_found(const FoundFile& file, std::string_view device_name,
                                           const Access& access);

  std::mutex& mutex_;  ///< the catalogue's
  const CatalogueOptions& options_;
  StorageTable& storages_;
  ReservationBook& reservations_;
  std::chrono::steady_clock::time_point impatient_from_;
  std::string directory_;                   ///< constant after the start; "": none
  std::shared_ptr<const SearchPath> path_;  ///< null while it waits; guarded by mutex_
  std::string trouble_;                     ///< guarded by mutex_
};

}  // namespace rnbd
