"""Schemas of the tests, compiled once."""

from __future__ import annotations

from kpipe_platform.codecs.protobuf.compiler import compiled
from kpipe_platform.codecs.protobuf.messages import MessageCodec
from kpipe_platform.registry.model import Schema

BROAD = """
syntax = "proto3";
package broad;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
enum Color { option allow_alias = true; RED = 0; GREEN = 1; LIME = 1; BLUE = 5; NEG = -3; }
message Inner { string name = 1; int32 n = 2; repeated int64 xs = 3; google.protobuf.Timestamp at = 4; }
message All {
  double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6; sint32 s32 = 7;
  sint64 s64 = 8; fixed32 f32 = 9; fixed64 f64 = 10; sfixed32 sf32 = 11; sfixed64 sf64 = 12; bool b = 13;
  string s = 14; bytes by = 15; Color c = 16; Inner m = 17;
  optional int32 oi = 18; optional string os = 19; optional bool ob = 60; optional Color oc = 61;
  optional bytes oby = 62; optional uint64 ou = 68;
  repeated int32 ri = 20; repeated string rs = 21; repeated Inner rm = 22; repeated Color rc = 23;
  repeated bytes rb = 63; repeated uint64 ru = 64; repeated uint32 ru32 = 69;
  map<string, int32> msi = 24; map<int32, Inner> mim = 25; map<bool, string> mbs = 26; map<string, Color> msc = 65;
  map<uint64, bytes> mub = 66; map<uint32, google.protobuf.Duration> mud = 70;
  oneof o { string oa = 27; int64 ox = 28; Inner om = 29; Color ocol = 67; }
  google.protobuf.Timestamp ts = 30; google.protobuf.Duration du = 31;
  google.protobuf.StringValue ws = 32; google.protobuf.Int64Value wi = 33; google.protobuf.BoolValue wb = 34;
  google.protobuf.UInt64Value wu = 35; google.protobuf.DoubleValue wd = 36; google.protobuf.BytesValue wby = 37;
  google.protobuf.UInt32Value wu32 = 71;
  repeated google.protobuf.Timestamp rts = 41; map<string, google.protobuf.Timestamp> mts = 42;
  repeated google.protobuf.StringValue rws = 43; repeated google.protobuf.Duration rdu = 72;
  repeated int32 unpacked = 44 [packed = false];
  message Deep { message Deeper { Inner inner = 1; repeated Deeper2 two = 2; } Deeper deeper = 1;
    map<string, Deeper> all = 2; }
  message Deeper2 { optional uint64 u = 1; oneof x { uint32 a = 2; string b = 3; } }
  Deep deep = 73;
}
"""

PROTO2 = """
syntax = "proto2";
package p2;
message M {
  required int32 id = 1; optional string name = 2 [default = "anon\\"y\\n"]; optional int32 n = 3; repeated int32 r = 4;
  repeated int32 rp = 5 [packed = true];
  enum E { A = 1; B = 2; } optional E e = 6; optional E ed = 7 [default = B]; repeated E re = 11;
  optional group G = 8 { optional int32 x = 9; } extensions 100 to 200;
  message In { required string q = 1; } optional In inn = 10;
  optional bytes by = 12 [default = "\\001a"]; optional double d = 13 [default = -inf];
  optional bool b = 14 [default = true];
  oneof o { string oa = 15; int64 ox = 16; } reserved 20 to 25, 30; reserved "gone";
}
"""

JSONS = """
syntax = "proto3";
package jsons;
import "google/protobuf/struct.proto";
import "google/protobuf/any.proto";
import "google/protobuf/empty.proto";
message J {
  google.protobuf.Struct st = 1; google.protobuf.Value va = 2; google.protobuf.ListValue lv = 3;
  google.protobuf.Any any = 4; repeated google.protobuf.Value values = 6; map<string, google.protobuf.Struct> maps = 7;
  int64 n = 8;
}
"""


def codec_of(text: str, message: str) -> MessageCodec:
    """Return the codec of plain messages."""
    return MessageCodec(compiled(Schema(text, "PROTOBUF")), message)
