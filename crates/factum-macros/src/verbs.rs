//! The English verbs that the rule on tenses needs to know.

/// What a word at the end of an event's name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A verb in the past: `confirmed`, `paid`, `fell`.
    Past,
    /// A verb in the past, if a noun stands before it: `PasswordReset`, but not `Reset`.
    PastAfterNoun,
    Other,
}

/// What may follow the verb and belong to it.
const PARTICLES: &[&str] = &[
    "ahead", "along", "apart", "around", "aside", "away", "back", "down", "forth", "forward", "in",
    "off", "on", "out", "over", "through", "together", "under", "up", "with",
];

/// What may follow the verb in two words.
const PHRASES: &[[&str; 2]] = &[
    ["in", "full"],
    ["in", "part"],
    ["in", "transit"],
    ["on", "hold"],
];

/// What begins a phrase that tells where it went or who did it: `ItemAddedToCart`.
const PREPOSITIONS: &[&str] = &["as", "by", "for", "from", "into", "onto", "to"];

/// A longer phrase is no name any more.
const MAX_PHRASE_WORDS: usize = 4;

pub(crate) fn is_particle(word: &str) -> bool {
    PARTICLES.contains(&word)
}

pub(crate) fn is_preposition(word: &str) -> bool {
    PREPOSITIONS.contains(&word)
}

/// Whether the words behind a verb belong to it: none, a particle, a phrase, or a particle and a phrase.
pub(crate) fn belong_to_verb(words: &[String]) -> bool {
    let is_phrase = |words: &[String]| match words {
        [first, second] if PHRASES.iter().any(|phrase| phrase == &[first, second]) => true,
        [first, _, ..] => is_preposition(first) && words.len() <= MAX_PHRASE_WORDS,
        _ => false,
    };
    match words {
        [] => true,
        [particle] => is_particle(particle),
        [particle, rest @ ..] if is_particle(particle) && is_phrase(rest) => true,
        _ => is_phrase(words),
    }
}

/// Verbs that are irregular: the verb, its past, its participle. Where there are several, all stand there.
///
/// Left out on purpose are the words that are another word far more often at the end of a name: `bit`, `lay`,
/// `saw`, `ground`.
const IRREGULAR: &str = "
    abide abode
    arise arose arisen
    awake awoke awoken
    backslide backslid backslidden
    bear bore borne born
    beat beaten
    befall befell befallen
    beget begot begat begotten
    begin began begun
    behold beheld
    bend bent
    bereave bereft
    beseech besought
    bespeak bespoke bespoken
    bestride bestrode bestridden
    betake betook betaken
    bethink bethought
    bind bound
    bite bitten
    bleed bled
    blow blew blown
    break broke broken
    breed bred
    bring brought
    build built
    burn burnt
    buy bought
    catch caught
    chide chid chidden
    choose chose chosen
    cleave cleft cloven
    cling clung
    clothe clad
    come came
    become became
    overcome overcame
    creep crept
    deal dealt
    dig dug
    do did done
    draw drew drawn
    dream dreamt
    drink drank drunk
    drive drove driven
    dwell dwelt
    eat ate eaten
    fall fell fallen
    feed fed
    feel felt
    fight fought
    find found
    flee fled
    fling flung
    fly flew flown
    forbear forbore forborne
    forbid forbade forbad forbidden
    forget forgot forgotten
    forgive forgave forgiven
    forgo forwent forgone
    forsake forsook forsaken
    forswear forswore forsworn
    freeze froze frozen
    get got gotten
    give gave given
    go went gone
    grave graven
    grow grew grown
    hang hung
    hear heard
    hew hewn
    hide hid hidden
    hold held
    keep kept
    kneel knelt
    know knew known
    lade laden
    lay laid
    lead led
    lean leant
    leap leapt
    learn learnt
    leave left
    lend lent
    lie lain
    light lit
    lose lost
    make made
    mean meant
    meet met
    melt molten
    mow mown
    partake partook partaken
    pay paid
    plead pled
    prove proven
    ride rode ridden
    ring rang rung
    rise rose risen
    rive riven
    run ran
    saw sawn
    say said
    see seen
    seek sought
    sell sold
    send sent
    sew sewn
    shake shook shaken
    shave shaven
    shear shorn
    shew shewn
    shine shone
    shoe shod
    shoot shot
    show shown
    shrink shrank shrunk shrunken
    shrive shrove shriven
    sing sang sung
    sink sank sunk sunken
    sit sat
    slay slew slain
    sleep slept
    slide slid slidden
    sling slung
    slink slunk
    smell smelt
    smite smote smitten
    sow sown
    speak spoke spoken
    speed sped
    spell spelt
    spend spent
    spill spilt
    spin spun
    spit spat
    spoil spoilt
    spring sprang sprung
    stand stood
    browbeat browbeaten
    inlay inlaid
    steal stole stolen
    stick stuck
    sting stung
    stink stank stunk
    strew strewn
    stride strode stridden
    strike struck stricken
    string strung
    strive strove striven
    swear swore sworn
    sweep swept
    swell swollen
    swim swam swum
    swing swung
    take took taken
    teach taught
    tear tore torn
    tell told
    think thought
    thrive throve thriven
    throw threw thrown
    tread trod trodden
    undergo underwent undergone
    understand understood
    misunderstand misunderstood
    wake woke woken
    waylay waylaid
    wear wore worn
    weave wove woven
    weep wept
    win won
    wind wound
    withdraw withdrew withdrawn
    withhold withheld
    withstand withstood
    work wrought
    wring wrung
    write wrote written
    unbend unbent
    unbind unbound
    undo undid undone
    unfreeze unfroze unfrozen
    unhang unhung
    unlearn unlearnt
    unmake unmade
    unsay unsaid
    unsling unslung
    unstick unstuck
    unstring unstrung
    unweave unwove unwoven
    unwind unwound
    handwrite handwrote handwritten
    typewrite typewrote typewritten
    ghostwrite ghostwrote ghostwritten
    handmake handmade
    hamstring hamstrung
    spoonfeed spoonfed
    breastfeed breastfed
    ";

/// Verbs that don't change, so that the name must say first what it happened to: `PriceSet`, not `SetPrice`.
///
/// Left out are those that are nouns far more often: `bet`, `bid`, `cost`, `fit`, `forecast`, `input`, `offset`, `output`,
/// `preset`, `run`. An `OrderCost` and a `PaymentRun` are things: say `OrderPriced`, `PaymentsExecuted`.
const UNCHANGED: &str = "
    beset broadcast burst cast cut hit hurt knit let miscast misread outbid overbid overcome proofread put quit read
    recast recut reknit relet reput reread reset resplit respread rid set shed shut simulcast slit split spread
    sublet telecast thrust typeset underbid undercut underlet upset webcast wed
    ";

/// Words that have the form of a verb in the past and are nouns or adjectives at the end of a name.
const NOUNS: &str = "
    airbed daybed deathbed flowerbed hotbed riverbed roadbed seabed streambed sunbed testbed waterbed
    bloodshed cowshed toolshed watershed woodshed bobsled dogsled centiped biped moped quadruped coed embed imbed reembed
    hundred kindred hatred sacred infrared naked wicked wretched rugged ragged jagged crooked dogged beloved
    talented gifted bigoted spirited moneyed monied bearded winged horned
    halfbred newlywed purebred thoroughbred unwed comet outbound present rebound upshot
    ";

/// States that tell that something did not happen, which is no fact in time.
const STATES: &str = "
    unauthorised unauthorized unchanged unconfirmed undefined undelivered unexpected unfinished unlimited
    unnamed unneeded unplanned unprecedented unprocessed unrelated unresolved untitled unused unverified unwanted
    ";

/// Participles in `-eed`, where most words are none: `agreed`, but `need`, `seed`, `speed`, `exceed`.
const IN_EED: &str = "
    agreed preagreed disagreed decreed emceed fricasseed filigreed freed garnisheed guaranteed kneed overagreed
    pedigreed peed pureed refereed squeegeed teed treed
    ";

/// Prefixes before an irregular verb: `overpaid`, `rewritten`, `resent`. `un` is not among them: `unpaid` is a state.
const PREFIXES: &[&str] = &[
    "re", "over", "under", "out", "mis", "fore", "pre", "up", "inter", "co", "auto", "counter",
    "cross",
];

/// Verbs that events are often named for, to guess what was meant: the verb, its past, and nouns for it.
const FREQUENT: &str = "
    abandon abandoned abandonment
    accept accepted acceptance
    activate activated activation
    add added addition
    adjust adjusted adjustment
    allocate allocated allocation
    apply applied application
    approve approved approval
    archive archived archival
    assign assigned assignment
    authorise authorised authorisation
    authorize authorized authorization
    block blocked
    book booked booking
    calculate calculated calculation
    cancel cancelled cancellation cancelation
    capture captured
    change changed
    charge charged
    check checked
    close closed closure
    collect collected collection
    complete completed completion
    confirm confirmed confirmation
    correct corrected correction
    create created creation
    credit credited
    deactivate deactivated deactivation
    decline declined
    delete deleted deletion
    deliver delivered delivery
    deploy deployed deployment
    deposit deposited
    disable disabled
    discard discarded
    dispatch dispatched
    enable enabled
    enrol enrolled enrolment
    enroll enrolled enrollment
    enter entered
    execute executed execution
    expire expired expiry expiration
    export exported
    extend extended extension
    fail failed failure
    finish finished
    fulfil fulfilled fulfilment
    fulfill fulfilled fulfillment
    grant granted
    import imported
    install installed installation
    invite invited invitation
    issue issued issuance
    join joined
    launch launched
    link linked
    lock locked
    log logged
    merge merged
    move moved
    open opened
    order ordered
    pack packed
    place placed placement
    post posted
    process processed
    publish published publication
    purchase purchased
    receive received receipt
    record recorded
    refund refunded
    register registered registration
    reject rejected rejection
    release released
    remove removed removal
    rename renamed
    renew renewed renewal
    replace replaced replacement
    request requested
    reserve reserved reservation
    resolve resolved resolution
    restore restored restoration
    return returned
    review reviewed
    revoke revoked revocation
    schedule scheduled
    settle settled settlement
    ship shipped shipment shipping
    sign signed
    start started
    stop stopped
    submit submitted submission
    subscribe subscribed subscription
    suspend suspended suspension
    terminate terminated termination
    transfer transferred
    unlock unlocked
    unsubscribe unsubscribed
    update updated
    upgrade upgraded
    upload uploaded
    use used
    validate validated validation
    verify verified verification
    pay paid payment
    buy bought
    sell sold
    send sent
    withdraw withdrawn withdrawal
    begin begun
    break broken
    build built
    choose chosen
    find found
    give given
    hold held
    make made
    take taken
    write written
    set set
    reset reset
    split split
    cut cut
    put put
    hit hit
    read read
    shut shut
    ";

/// Verbs of [`FREQUENT`] that are nouns as often at the beginning of a name: an `OrderStatus` orders nothing.
const NOUNS_TOO: &str = "
    book change charge credit deposit link order post purchase record release request return review schedule
    ";

/// Whether a word at the beginning of a name makes it a command.
pub(crate) fn is_command(word: &str) -> bool {
    past_of_verb(word).is_some() && !has(NOUNS_TOO, word)
}

fn has(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|known| known == word)
}

/// What a word in lower case is at the end of a name.
pub(crate) fn standing(word: &str) -> Standing {
    if has(NOUNS, word) || has(STATES, word) {
        Standing::Other
    } else if has(UNCHANGED, word) {
        Standing::PastAfterNoun
    } else if is_irregular(word) || is_regular(word) {
        Standing::Past
    } else {
        Standing::Other
    }
}

fn is_irregular(word: &str) -> bool {
    // Its first word is the verb itself, which is no past.
    let listed = |word: &str| {
        IRREGULAR
            .lines()
            .any(|line| line.split_whitespace().skip(1).any(|form| form == word))
    };
    listed(word)
        || PREFIXES
            .iter()
            .filter_map(|prefix| word.strip_prefix(prefix))
            .any(listed)
}

fn is_regular(word: &str) -> bool {
    let Some(stem) = word.strip_suffix("ed") else {
        return false;
    };
    if stem.ends_with('e') {
        return has(IN_EED, word);
    }
    // `bed`, `red` and `shed` have no vowel left, as no verb has.
    stem.contains(['a', 'e', 'i', 'o', 'u', 'y'])
}

/// The past of a verb that events are often named for.
pub(crate) fn past_of_verb(word: &str) -> Option<String> {
    FREQUENT.lines().find_map(|line| {
        let mut forms = line.split_whitespace();
        let (verb, past) = (forms.next()?, forms.next()?);
        (verb == word).then(|| past.to_owned())
    })
}

/// The past of the verb that a noun is made of: `confirmation`, `payment`, and also `confirming`, `confirms`.
pub(crate) fn past_of_noun(word: &str) -> Option<String> {
    let bare = |ending: &str| word.strip_suffix(ending).and_then(past_of_verb);
    let with_e = || {
        let stem = word.strip_suffix("ing")?;
        past_of_verb(&format!("{stem}e"))
    };
    FREQUENT
        .lines()
        .find_map(|line| {
            let mut forms = line.split_whitespace().skip(1);
            let past = forms.next()?;
            forms.any(|noun| noun == word).then(|| past.to_owned())
        })
        .or_else(|| bare("ing"))
        .or_else(|| bare("s"))
        .or_else(with_e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_irregular_form_is_a_past_unless_it_is_mostly_a_noun() {
        let mut forms = 0;
        for form in IRREGULAR
            .lines()
            .flat_map(|line| line.split_whitespace().skip(1))
        {
            let expected = if has(NOUNS, form) {
                Standing::Other
            } else {
                Standing::Past
            };
            assert_eq!(standing(form), expected, "{form}");
            forms += 1;
        }
        assert!(forms > 250, "{forms}");
    }

    #[test]
    fn a_guess_is_in_the_past() {
        for line in FREQUENT.lines().filter(|line| !line.trim().is_empty()) {
            let forms: Vec<&str> = line.split_whitespace().collect();
            let past = past_of_verb(forms[0]).unwrap();
            assert_eq!(past, forms[1]);
            assert_ne!(standing(&past), Standing::Other, "{past}");
            for noun in &forms[2..] {
                assert_eq!(past_of_noun(noun).as_ref(), Some(&past), "{noun}");
                assert_eq!(standing(noun), Standing::Other, "{noun}");
            }
        }
    }

    #[test]
    fn no_word_stands_in_two_lists_that_contradict_each_other() {
        for word in UNCHANGED.split_whitespace() {
            assert!(!is_irregular(word), "{word}");
        }
        for word in STATES.split_whitespace() {
            assert!(is_regular(word), "{word} needs no entry");
        }
    }
}
