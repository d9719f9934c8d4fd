// SPDX-License-Identifier: BSD-3-Clause
// The words of rnbd-ctl's own commands, as people write them: [SIDE] [OBJECT] VERB [NAME...]
// [OPTION...].
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace rnbd {

/// The task of a command.
enum class CtlVerb : std::uint8_t {
  help,
  list,
  show,
  check,
  udev,
  map,
  unmap,
  remap,
  resize,
  add,
  remove,
  readd,
  disconnect,
  reconnect,
  recover,
  close
};
enum class CtlSide : std::uint8_t { both, client, server };
enum class CtlObject : std::uint8_t { device, session, path };
enum class CtlFormat : std::uint8_t { table, csv, json, xml };

/// Units of sizes; each is 1024 times the one before it.
constexpr std::string_view kCtlUnits = "BKMGTPE";

/// A command line of rnbd-ctl that names no control socket.
struct CtlAction {
  CtlVerb verb = CtlVerb::help;
  std::optional<CtlVerb> topic = {};  ///< help: about this verb only
  CtlSide side = CtlSide::both;
  std::optional<CtlObject> object = {};
  std::vector<std::string> names = {};  ///< whatever the verb is about
  /// "a,b" or "+a" or "-a", in the order of the command line. "a" "b" is "a,b".
  std::vector<std::string> fields = {};
  CtlFormat format = CtlFormat::table;
  char unit = '\0';  ///< one of kCtlUnits; 0: for people the one that fits, else bytes
  bool tree = true;
  bool headers = true;
  bool totals = true;
  bool all_fields = false;
  bool watch = false;                   ///< again and again
  std::string interval = {};            ///< watch: seconds between two looks; "": the usual ones
  std::string server = {};              ///< map: from where; "": the device is a URI
  std::vector<std::string> paths = {};  ///< map: besides the server's own
  bool paths_of_server = false;         ///< map: also those that the server advertises
  std::string access = {};              ///< map: "ro", "rw", "migration"; "": the bridge's default
  std::string map_name = {};            ///< map: "": made of the device's
  std::string kernel_device = {};       ///< map: "nbd3"; "": the first that is free
  std::vector<std::string> options = {};  ///< map: for rnbd-bridge, as they are
  std::string bridge = {};                ///< map: the program without systemd; "": the usual one
  bool rdma = false;                      ///< map
  bool persist = false;                   ///< map: also after the next boot
  bool own_process = false;               ///< map: shares no bridge
  std::string wait = {};                  ///< for so many seconds at most; "": the usual ones
  bool force = false;                     ///< although somebody uses it
  bool add_missing = false;               ///< recover: paths that a session lacks, too
  std::string root = {};                  ///< in front of /run, /etc and /sys; "": nothing
  friend bool operator==(const CtlAction&, const CtlAction&) = default;
};

/// True: the words are a command of rnbd-ctl itself. A verb comes first, or there are sides and
/// objects only; a verb may have these in front, and options may be anywhere. `server list` and
/// `sessions` are such commands; `server status` asks the program that is called so.
bool begins_with_ctl_word(const std::vector<std::string>& words);

/// Reads the words behind the program's name. An option may have dashes in front.
///
/// Errors: a sentence that says what to write instead.
tl::expected<CtlAction, std::string> parse_ctl_words(const std::vector<std::string>& words);

/// The time that a command waits at most, in seconds; `usual` if it does not say.
///
/// Errors: a sentence about a word that is no time.
tl::expected<double, std::string> seconds_to_wait(const CtlAction& action, double usual);
/// The time between two looks of `watch`, likewise.
tl::expected<double, std::string> seconds_between_looks(const CtlAction& action);

/// A verb as it is written.
struct CtlVerbWord {
  std::string_view word;
  CtlVerb verb;
  std::size_t least_names, most_names;
  std::uint32_t about;    ///< the bits of those whose help has it
  std::string_view form;  ///< "": another word for one that has it
  std::string_view help;
};
std::span<const CtlVerbWord> ctl_verb_words();

/// The verbs and words with what they do: all of them, or those about the side or object of the
/// help. A topic is one verb, with the words that belong to it, and the fields of its object or of
/// all.
std::string help_on_ctl_words(const CtlAction& help = {});
/// The line that mounts the disk of the mapping NAME at boot, which `unit` serves. Source:
/// fstab(5), systemd.mount(5).
std::string fstab_line(const std::string& name, const std::string& unit);
/// A line for each verb, and for each command of a running program.
std::string ctl_verbs_in_short();
/// A verb, or a command of running programs, of a similar name, or of the same meaning in nvme(1)
/// or nbd-client(8), as "; did you mean map?"; "".
std::string ctl_verb_like(const std::string& word);

/// A complaint about words that begin with a side or an object and name no command, such as
/// `path dele` or `server evict`, and what to write. "": they do not begin so. It is for words that
/// are no control socket, either.
std::string complaint_about_ctl_group(const std::vector<std::string>& words);

/// An address as IONOS's rnbd writes it, "ip:10.0.0.2@ip:10.0.0.1", without these kinds.
std::string without_ip(std::string address);

/// The URI of a server that is written as one, or as HOST[:PORT], tcp:HOST[:PORT] or
/// rdma:HOST[:PORT], the way paths are shown; without any of these over `kind`, "tcp" or "rdma".
std::string uri_of_server(const std::string& server, const std::string& kind = "tcp");

/// "device", "session" or "path".
const char* name_of(CtlObject object);

}  // namespace rnbd
