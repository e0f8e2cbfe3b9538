//! A link whose MTU is too small: it returns small probes and loses large frames.

use crate::bed::PathNetwork;
use crate::impaired::path_by;

#[test]
fn a_path_that_loses_large_frames_is_grey_until_they_pass() {
    let Some(mut bed) = PathNetwork::build('n') else { return };
    bed.start();
    bed.wait_for("large probes pass on all paths", |bed| {
        bed.paths()?.iter().all(|path| path["large"] == "pass").then_some(())
    });
    bed.ip("r1", "link set dev p1 mtu 1400");
    bed.wait_for("a grey path", |bed| {
        let path = path_by(bed, 1)?;
        let is_grey = path["state"] == "grey" && path["why"] == "large frames are lost";
        (is_grey && path["weight"] == 0).then_some(())
    });
    assert_eq!(path_by(&bed, 0).expect("another path")["large"], "pass");
    bed.wait_for_doctor("fabric", "warning", "1 of its 4 paths lose packets of 1500 bytes");
    let output_of = bed.output_of(&["show", "path"]);
    assert!(output_of.contains("1 of 4 paths lose packets of 1500 bytes"), "{output_of}");
    bed.ip("r1", "link set dev p1 mtu 1500");
    bed.wait_for("four good paths", PathNetwork::paths);
}
