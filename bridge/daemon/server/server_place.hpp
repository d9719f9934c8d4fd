// SPDX-License-Identifier: BSD-3-Clause
// The place where a server runs: what a clone of its file system has not.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <tl/expected.hpp>

namespace rnbd {

/// The marks of a machine and of a server's addresses. A restart, a reboot, another version or
/// another host name change none of them. An empty one is not known and is not compared.
struct ServerPlace {
  std::string machine;              ///< /etc/machine-id
  std::set<std::string> cards;      ///< permanent hardware addresses of the network cards
  std::set<std::string> addresses;  ///< hosts where it was told to listen, without wildcards
  friend bool operator==(const ServerPlace&, const ServerPlace&) = default;
};

/// The marks of this machine. `root` is where /etc and /sys are, for tests. Threads: any; may
/// block.
ServerPlace this_place(std::set<std::string> addresses, const std::string& root = "");

/// The first mark by which `is` is another place than `was`, in words; "" = it is the same place.
/// Cards and addresses tell places apart when they have nothing in common.
std::string change_of_place(const ServerPlace& was, const ServerPlace& is);

/// The file of a server's place.
///
/// Threads: one.
class PlaceFile {
 public:
  using Saved = tl::expected<void, std::string>;

  /// In an existing directory.
  explicit PlaceFile(const std::string& directory) : path_{directory + "/server-place"} {}

  /// The change since the file was written, in words; "" if there is none, or no file yet, or the
  /// operator lets the server be anywhere (is_anywhere()).
  ///
  /// Errors: the trouble with the file.
  tl::expected<std::string, std::string> change(const ServerPlace& now);
  /// Records the place, after change(). A mark that is unknown now keeps its old value, and at the
  /// same place no card or address is forgotten. Durable when it returns. May block.
  ///
  /// `before` is called when there is room for the record, and before the record counts.
  ///
  /// Errors: the trouble with the file, or that of `before`. The old record counts then.
  Saved save(const ServerPlace& now, const std::function<Saved()>& before = {}) const;
  /// The operator has written `any` into the file: servers take turns with the directory, or
  /// several are one to their clients. Valid after change().
  bool is_anywhere() const { return anywhere_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool anywhere_ = false;
  ServerPlace was_;  ///< in the file
};

}  // namespace rnbd
